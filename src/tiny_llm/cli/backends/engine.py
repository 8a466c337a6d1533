"""Builds an `LLM` and its sampling parameters from the flags."""

import argparse
import secrets
from typing import Any

from ...engine.engine_args import EngineArgs
from ...engine.inputs.sampling_params import SamplingParams
from ...engine.llm import LLM
from ...engine.scheduling.events import Listener
from ..parsing.arguments import given_options
from .checkpoint import Checkpoint, load_for_solution


def open_llm(
    args: argparse.Namespace,
    checkpoint: Checkpoint,
    *,
    max_num_seqs: int,
    prefill_step: int,
    max_model_len: int | None = None,
    listener: Listener | None = None,
) -> LLM:
    """Builds an `LLM` from the checkpoint and the draft model given by the flags.

    `prefill_step` is the number of prompt tokens per step, in addition to the decode tokens.
    """
    options: dict[str, Any] = given_options(args, EngineArgs)
    options["tensor_parallel_size"] = 1  # the checkpoint is already sharded
    if args.draft_model is not None:
        options["draft_model"] = load_for_solution(args, args.draft_model)
    max_drafts = EngineArgs("", **options).max_drafts
    return LLM(
        (checkpoint.mlx_model, checkpoint.tokenizer),
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_seqs * (1 + max_drafts) + prefill_step,
        max_model_len=max_model_len,
        seed=secrets.randbits(63),  # for requests without a seed
        listener=listener,
        **options,
    )


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
