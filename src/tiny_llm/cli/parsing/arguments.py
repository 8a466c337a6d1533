"""Command-line flags shared by several commands, and their validation."""

import argparse
import math
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from ... import kernels
from ...errors import UserError
from ...generate import WEEK_MODELS
from ...kv_storage.int8_rows import KV_CACHE_DTYPES
from ...models import (
    ACTIVATION_BITS,
    ATTENTION_BACKENDS,
    BUNDLED_MODELS,
    LOAD_FORMATS,
    SHORT_NAMES,
)
from ...models.parallel.launch import num_launched_ranks
from ...sampler import Sampler, make_sampler
from .input_text import validate_utf8

SOLUTIONS = ("tiny_llm", "ref", "tiny_llm_ref", "mine", "mlx")
LOADERS = {f"week{week}": week for week in WEEK_MODELS}
ENGINE = "engine"  # default loader: the serving engine, not a week's decoding loop

# Flags that only the engine supports, by attribute name in the namespace.
ENGINE_FLAGS = {
    "speculative": "only the engine supports n-gram and MTP speculation",
    "num_drafts": "only the engine has a configurable number of draft tokens",
    "attention_backend": "only the engine has selectable attention backends",
    "kv_cache_dtype": "only the engine has an 8-bit KV cache",
    "activation_bits": "only the engine rounds activations to 8 bits",
    "block_size": "only the engine has a configurable page size",
    "tensor_parallel_size": "only the engine shards a model across processes",
    "kv_cache_bytes": "only the engine has a memory budget for the KV cache",
    "prefix_cache_dir": "only the engine has a prefix cache",
    "prefix_cache_disk_bytes": "only the engine has a prefix cache",
    "record": "only the engine records events",
    "adapter_path": "only the engine supports LoRA adapters",
}

DEFAULT_BLOCK_SIZE = 32  # tokens per page; `LLM`'s default
API_KEY_VARIABLE = "TINY_LLM_API_KEY"


def api_key(argument: str | None) -> str | None:
    """API key from `--api-key` or `API_KEY_VARIABLE`; None if neither is set."""
    key = argument or os.environ.get(API_KEY_VARIABLE)
    return validate_utf8("the API key", key) if key else None


def in_range(
    low: float, high: float = math.inf, convert: type[int] | type[float] = int
) -> Callable[[str], Any]:
    """Argument type: a number in [low, high]."""

    def parse(text: str) -> Any:
        value = convert(text)
        if low <= value <= high:
            return value
        allowed = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise argparse.ArgumentTypeError(f"must be {allowed}, got {text}")

    parse.__name__ = convert.__name__  # argparse prints this name in "invalid int value"
    return parse


def byte_count(text: str) -> int:
    """Argument type: an integer, optionally in scientific notation, e.g. 1e9."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        if (value := float(text)).is_integer():
            return int(value)
    raise argparse.ArgumentTypeError(f"must be a whole number such as 536870912 or 1e9, got {text}")


def rank_count(text: str) -> int:
    """Argument type: number of ranks; must match the launcher's, if any."""
    size: int = in_range(1)(text)
    launched = num_launched_ranks()
    if launched not in (1, size):
        raise argparse.ArgumentTypeError(
            f"must be {launched}, the number of launched ranks, got {size}; omit it"
        )
    return size


def add_flag(
    parser: Any, names: str, text: str, kind: Any = None, default: Any = None, **options: Any
) -> None:
    """Adds a flag to a parser or group.

    Args:
        names: flag, aliases and metavar, e.g. "--max-tokens N".
        kind: argument type, or the choices.
    """
    if isinstance(kind, list | tuple | dict):
        options |= {"choices": kind, "metavar": "{" + ",".join(kind) + "}"}
    elif kind is not None:
        options["type"] = kind
    flags = [name for name in names.split() if name.startswith("--")]
    if metavar := names.split()[len(flags) :]:
        options["metavar"] = metavar[0]
    if default is not None:
        options["default"] = default
    parser.add_argument(*flags, help=text, **options)


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    flag = partial(add_flag, parser)
    flag(
        "--model NAME",
        f"{', '.join([*BUNDLED_MODELS, *SHORT_NAMES])}, a Hub id (owner/name), a folder, a GGUF "
        "file, ollama:NAME or lmstudio:NAME",
    )
    flag(
        "--solution",
        "tiny_llm (default): the learner's tree if it exists, else this package; ref or "
        "tiny_llm_ref: this package; mine: the learner's tree; mlx: mlx_lm, as a baseline",
        SOLUTIONS,
    )
    flag(
        "--loader",
        "a week's model and decoding loop, which apply top-p and top-k before the temperature; or "
        "the engine, which applies them after it (default, except with --solution mine)",
        [*LOADERS, ENGINE],
    )
    flag(
        "--enable-flash-attn",
        "attention that never materializes the L×S scores (week2 only); default on the CPU, "
        "where it is faster",
        action=argparse.BooleanOptionalAction,
    )
    add_engine_arguments(parser)


def add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    drafts = parser.add_mutually_exclusive_group()
    add_flag(drafts, "--draft-model NAME", "draft model for speculative decoding")
    add_flag(
        drafts,
        "--speculative",
        "speculative decoding without a draft model: n-gram lookup in the prompt and output, or "
        "the multi-token prediction layer of Qwen3.5 and Qwen3-Next (mtp)",
        ["ngram", "mtp"],
    )
    flag = partial(add_flag, parser)
    flag(
        "--num-drafts N",
        "maximum draft tokens per request and step (engine only; default: 4 with "
        "--draft-model, 7 with ngram, 1 with mtp)",
        in_range(1),
    )
    flag("--block-size N", "tokens per KV cache page (engine only; default: 32)", in_range(1))
    flag(
        "--attention-backend",
        "the engine's attention backend: paged (default) reads pages in place; flash and reference "
        "gather them first and are slower, for comparison",
        ATTENTION_BACKENDS,
    )
    flag(
        "--kv-cache-dtype",
        "dtype of the engine's KV cache: auto (default) matches the activations; int8 halves the "
        "memory",
        KV_CACHE_DTYPES,
    )
    flag(
        "--activation-bits",
        "8 rounds the inputs of quantized layers to 8-bit integers, for faster prompts on a CPU at "
        "a small error (engine only; default: 16, exact)",
        int,
        choices=ACTIVATION_BITS,
    )
    flag("--adapter-path DIR", "LoRA adapter: a folder written by mlx_lm.lora (engine only)")
    flag(
        "--prefix-cache-dir DIR",
        "persist prefix cache pages in a directory, for later runs and other processes "
        "(engine only)",
    )
    flag(
        "--prefix-cache-disk-bytes N",
        "maximum bytes in --prefix-cache-dir; the least recently used pages are evicted "
        "(engine only; default: 1e10)",
        byte_count,
    )
    flag(
        "--tensor-parallel-size --tp N",
        "shard the model across N processes on this machine, or across the N ranks started "
        "by mlx.launch or mpirun (engine only)",
        rank_count,
        num_launched_ranks(),
    )
    flag(
        "--load-format",
        "auto reads the weights; dummy generates random weights in the shapes given by config.json",
        LOAD_FORMATS,
        "auto",
    )
    flag("--device", "device to run on; by default, gpu if available", ["cpu", "gpu"])


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    flag = partial(add_flag, parser)
    flag("--sampler-temp --temperature T", "sampling temperature; 0 is greedy", float, 0.0)
    flag(
        "--sampler-top-p --top-p P",
        "sample from the smallest set of most likely tokens with total probability P",
        float,
    )
    flag("--sampler-top-k --top-k K", "sample from the K most likely tokens", int)
    flag(
        "--seed N",
        "random seed, for reproducible sampling; by default, random",
        in_range(0, 2**64 - 1),
    )
    flag(
        "--max-tokens N",
        "maximum number of new tokens; by default, up to the end of the context",
        in_range(1),
    )
    flag("--enable-thinking", "let the model reason before it answers", action="store_true")


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    flag = partial(add_flag, parser)
    flag("--batch-size N", "maximum number of running requests", in_range(1), 5)
    flag("--prefill-step N", "maximum prompt tokens per step", in_range(1), 128)


def check_model_arguments(args: argparse.Namespace, needs_cache: bool = False) -> None:
    """Rejects unsupported combinations of flags and resolves defaults.

    Resolves the default of `args.loader`: a week's model for
    --solution mine, for --enable-flash-attn, or if the extension is not built; else the engine.

    Args:
        needs_cache: whether the command needs a KV cache, which Week 1 lacks.
    """
    if args.solution == "mlx":
        _check_mlx_arguments(args)
        return
    beyond_week1 = needs_cache or args.draft_model is not None
    if args.loader == ENGINE and args.enable_flash_attn is not None:
        raise UserError(
            "--enable-flash-attn has no effect on the engine, which uses --attention-backend; "
            "omit it, or use --loader week2."
        )
    is_unspecified = args.loader is None and args.enable_flash_attn is None
    prefers_engine = args.solution == "ref" and (beyond_week1 or kernels.is_built())
    if args.loader == ENGINE or (is_unspecified and prefers_engine):
        kernels.extension()  # raises before the model is loaded if the extension is not built
        args.loader, args.enable_flash_attn = ENGINE, False
        return
    for name, reason in ENGINE_FLAGS.items():
        if _is_set(args, name):
            raise UserError(
                f"{flag_name(name)}: {reason}; omit it, or omit --loader, --solution and "
                "--enable-flash-attn."
            )
    if args.loader is None:
        wants_week2 = beyond_week1 or args.enable_flash_attn or kernels.is_built()
        args.loader = "week2" if wants_week2 else "week1"
    if needs_cache and args.loader == "week1":
        raise UserError(
            "--loader week1 has no KV cache and cannot batch; use --loader week2 or "
            "week3, or --solution mlx."
        )
    if args.enable_flash_attn and args.loader != "week2":
        raise UserError(
            f"--enable-flash-attn: {args.loader} does not have this kernel; omit it, or use "
            "--loader week2."
        )
    if args.draft_model is not None and args.loader == "week1":
        raise UserError(
            "--draft-model: week1 has no KV cache to rewind after a rejected draft token; omit it, "
            "or use --loader week2 or week3."
        )
    if args.enable_flash_attn is False and args.loader == "week3":
        raise UserError(
            "--no-enable-flash-attn: week3 has only paged attention; omit it, or use "
            "--loader week2."
        )
    if args.loader != "week1":
        kernels.extension()  # raises before the model is loaded if the extension is not built
    if args.enable_flash_attn is None:
        args.enable_flash_attn = args.loader == "week2" and kernels.runs_on_default_device()


def _check_mlx_arguments(args: argparse.Namespace) -> None:
    if args.load_format == "dummy":
        raise UserError(
            "--load-format dummy is not supported with --solution mlx; omit one of them."
        )
    for name in ("loader", "enable_flash_attn", *ENGINE_FLAGS):
        if _is_set(args, name):
            raise UserError(f"{flag_name(name)} has no effect with --solution mlx; omit it.")


def _is_set(args: argparse.Namespace, name: str) -> bool:
    """Whether a flag is set; `tensor_parallel_size` is unset at its default, 1."""
    value = getattr(args, name, None)
    return value is not None and not (name == "tensor_parallel_size" and value == 1)


def flag_name(name: str) -> str:
    """Flag for a namespace attribute: "block_size" → "--block-size"."""
    return "--" + name.replace("_", "-")


def check_batch_arguments(args: argparse.Namespace) -> None:
    check_model_arguments(args, needs_cache=True)
    if args.draft_model is not None and args.loader != ENGINE:
        raise UserError(
            "--draft-model: only the engine verifies draft tokens in a batch; omit it, or omit "
            "--loader, --solution and --enable-flash-attn."
        )


def sampler_from_args(args: argparse.Namespace) -> Sampler:
    try:
        return make_sampler(
            args.sampler_temp, top_p=args.sampler_top_p, top_k=args.sampler_top_k, seed=args.seed
        )
    except ValueError as error:
        raise UserError(str(error)) from error
