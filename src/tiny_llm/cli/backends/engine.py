"""From the flags to an engine, and to what it is asked for."""

import argparse
import secrets
from typing import Any

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.llm import DEFAULT_NUM_DRAFTS, LLM
from ...engine.scheduling.events import Listener
from ...models.families.registry import config_of
from .checkpoint import Checkpoint, load_for_solution

PAGE_SIZE = 32


def open_llm(
    args: argparse.Namespace,
    checkpoint: Checkpoint,
    *,
    max_num_seqs: int,
    kv_tokens: int,
    prefill_step: int,
    listener: Listener | None = None,
) -> LLM:
    """An `LLM` with the checkpoint, and the draft model that the flags name.

    Args:
        args: flags. Memory for keys and values is what `kv_cache_bytes` says, if it does.
        checkpoint: the model.
        max_num_seqs: how many requests run at a time.
        kv_tokens: how many tokens each of them may have in memory.
        prefill_step: how many tokens of prompts a step may have besides.
        listener: see `LLM`.

    Raises:
        UserError: see `LLM` and `load_for_solution`.
    """
    draft = None if args.draft_model is None else load_for_solution(args, args.draft_model)
    memory = getattr(args, "kv_cache_bytes", None)
    if memory is None:
        models = [checkpoint.mlx_model] if draft is None else [checkpoint.mlx_model, draft[0]]
        pages = max_num_seqs * (-(-kv_tokens // PAGE_SIZE) + 1)
        memory = pages * PAGE_SIZE * sum(map(kv_bytes_per_token, models))
    per_request = 1 if draft is None else 1 + DEFAULT_NUM_DRAFTS
    return LLM(
        (checkpoint.mlx_model, checkpoint.tokenizer),
        kv_cache_bytes=memory,
        block_size=PAGE_SIZE,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * per_request + prefill_step,
        draft_model=draft,
        speculative=args.speculative,
        attention_backend=args.attention_backend or "paged",
        seed=secrets.randbits(63),  # for requests that have none
        listener=listener,
    )


def sampling_params_from_args(
    args: argparse.Namespace, max_tokens: int | None, ignore_eos: bool = False
) -> SamplingParams:
    """What the flags ask for; `bench` has none, and is greedy."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=getattr(args, "sampler_temp", 0.0),
        top_p=getattr(args, "sampler_top_p", None) or 1.0,
        top_k=getattr(args, "sampler_top_k", None) or 0,
        seed=getattr(args, "seed", None),
        ignore_eos=ignore_eos,
    )


def kv_bytes_per_token(mlx_model: Any) -> int:
    """As the model's `kv_bytes_per_token` will be, before it is built."""
    args, item_bytes = config_of(mlx_model.args), mlx_model.model.norm.weight.dtype.size
    return 2 * args.num_hidden_layers * args.num_key_value_heads * args.head_dim * item_bytes
