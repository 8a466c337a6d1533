"""Builds an `LLM` and its sampling parameters from the flags."""

import argparse
import secrets
from typing import Any

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.llm import DEFAULT_NUM_DRAFTS, LLM
from ...engine.scheduling.events import Listener
from ...engine.spec_decode.ngram_proposer import MAX_NGRAM_DRAFT_TOKENS
from ...models.families.registry import config_of
from ..parsing.arguments import DEFAULT_BLOCK_SIZE
from .checkpoint import Checkpoint, load_for_solution


def open_llm(
    args: argparse.Namespace,
    checkpoint: Checkpoint,
    *,
    max_num_seqs: int,
    kv_tokens: int,
    prefill_step: int,
    listener: Listener | None = None,
) -> LLM:
    """Builds an `LLM` from the checkpoint and the draft model of the flags.

    Args:
        args: flags; `kv_cache_bytes`, if set, overrides the size derived from `kv_tokens`.
        checkpoint: the model.
        max_num_seqs: maximum number of running requests.
        kv_tokens: maximum number of tokens per request in the KV cache.
        prefill_step: token budget for prompts in a step, in addition to decoding.
        listener: see `LLM`.

    Raises:
        UserError: see `LLM` and `load_for_solution`.
    """
    draft = None if args.draft_model is None else load_for_solution(args, args.draft_model)
    page_size = args.block_size or DEFAULT_BLOCK_SIZE
    memory = getattr(args, "kv_cache_bytes", None)
    if memory is None:
        models = [checkpoint.mlx_model] if draft is None else [checkpoint.mlx_model, draft[0]]
        pages = max_num_seqs * (-(-kv_tokens // page_size) + 1)
        memory = pages * page_size * sum(map(kv_bytes_per_token, models))
    num_drafts = 0
    if draft is not None:
        num_drafts = args.num_drafts or DEFAULT_NUM_DRAFTS
    elif args.speculative is not None:
        num_drafts = args.num_drafts or MAX_NGRAM_DRAFT_TOKENS
    return LLM(
        (checkpoint.mlx_model, checkpoint.tokenizer),
        kv_cache_bytes=memory,
        block_size=page_size,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (1 + num_drafts) + prefill_step,
        draft_model=draft,
        num_drafts=args.num_drafts,
        speculative=args.speculative,
        attention_backend=args.attention_backend or "paged",
        seed=secrets.randbits(63),  # of unseeded requests
        listener=listener,
    )


def sampling_params_from_args(
    args: argparse.Namespace, max_tokens: int | None, ignore_eos: bool = False
) -> SamplingParams:
    """Sampling parameters of the flags; greedy for `bench`, which has none."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=getattr(args, "sampler_temp", 0.0),
        top_p=getattr(args, "sampler_top_p", None) or 1.0,
        top_k=getattr(args, "sampler_top_k", None) or 0,
        seed=getattr(args, "seed", None),
        ignore_eos=ignore_eos,
    )


def kv_bytes_per_token(mlx_model: Any) -> int:
    """The serving model's `kv_bytes_per_token`, before that model is built."""
    args, item_bytes = config_of(mlx_model.args), mlx_model.model.norm.weight.dtype.size
    return 2 * args.num_hidden_layers * args.num_key_value_heads * args.head_dim * item_bytes
