"""Builds an `LLM` and its sampling parameters from the flags."""

import argparse
import secrets
from dataclasses import replace
from typing import Any

from ...engine.execution.kv_memory import default_state_slots, page_and_state_bytes
from ...engine.inputs.sampling_params import SamplingParams
from ...engine.llm import DEFAULT_NUM_DRAFTS, DEFAULT_NUM_MTP_DRAFTS, LLM
from ...engine.scheduling.events import Listener
from ...engine.spec_decode.ngram_proposer import MAX_NGRAM_DRAFT_TOKENS
from ...models.families.registry import config_of
from ...models.heads.mtp import mtp_checkpoint
from ...models.model_size import size_of_tree
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
    """Builds an `LLM` from the checkpoint and the draft model given by the flags.

    Args:
        args: flags; `kv_cache_bytes`, if set, overrides the size derived from `kv_tokens`.
        kv_tokens: maximum number of tokens per request in the KV cache.
        prefill_step: prompt tokens per step, in addition to the decode tokens.
    """
    draft = None if args.draft_model is None else load_for_solution(args, args.draft_model)
    page_size = args.block_size or DEFAULT_BLOCK_SIZE
    memory = getattr(args, "kv_cache_bytes", None)
    kv_cache_dtype: Any = args.kv_cache_dtype or "auto"
    if memory is None:
        models = [checkpoint.mlx_model] if draft is None else [checkpoint.mlx_model, draft[0]]
        if config_of(checkpoint.mlx_model.args).has_mtp:
            models.append(mtp_checkpoint(checkpoint.mlx_model))
        pages = max_num_seqs * (-(-kv_tokens // page_size) + 1)
        sizes = [replace(size_of_tree(each), kv_cache_dtype=kv_cache_dtype) for each in models]
        page_bytes, state_bytes = page_and_state_bytes(page_size, sizes)
        memory = pages * page_bytes + default_state_slots(max_num_seqs) * state_bytes
    num_drafts = 0
    if draft is not None:
        num_drafts = args.num_drafts or DEFAULT_NUM_DRAFTS
    elif args.speculative is not None:
        default = {"ngram": MAX_NGRAM_DRAFT_TOKENS, "mtp": DEFAULT_NUM_MTP_DRAFTS}
        num_drafts = args.num_drafts or default[args.speculative]
    return LLM(
        (checkpoint.mlx_model, checkpoint.tokenizer),
        kv_cache_bytes=memory,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (1 + num_drafts) + prefill_step,
        draft_model=draft,
        seed=secrets.randbits(63),  # for requests without a seed
        listener=listener,
        **engine_options(args),
    )


def engine_options(args: argparse.Namespace) -> dict[str, Any]:
    """`LLM` arguments from the engine flags, except those for loading models."""
    names = ("num_drafts", "speculative", "prefix_cache_dir", "prefix_cache_disk_bytes")
    return {
        **{name: getattr(args, name) for name in (*names, "adapter_path")},
        "block_size": args.block_size or DEFAULT_BLOCK_SIZE,
        "attention_backend": args.attention_backend or "paged",
        "kv_cache_dtype": args.kv_cache_dtype or "auto",
        "activation_bits": args.activation_bits or 16,
    }


def sampling_params_from_args(
    args: argparse.Namespace, max_tokens: int | None, ignore_eos: bool = False
) -> SamplingParams:
    """Sampling parameters from the flags; greedy if there are none (`bench`)."""
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=getattr(args, "sampler_temp", 0.0),
        top_p=getattr(args, "sampler_top_p", None) or 1.0,
        top_k=getattr(args, "sampler_top_k", None) or 0,
        seed=getattr(args, "seed", None),
        ignore_eos=ignore_eos,
    )
