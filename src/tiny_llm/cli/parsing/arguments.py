"""Command-line flags shared by several commands, and their validation."""

import argparse
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from ... import kernels
from ...engine.engine_args import EngineArgs
from ...engine.inputs.options import Option, options_of
from ...errors import UserError
from ...generate import WEEK_MODELS
from ...models import BUNDLED_MODELS, SHORT_NAMES
from ...sampler import Sampler, make_sampler
from .command import validate_utf8

SOLUTIONS = ("tiny_llm", "ref", "tiny_llm_ref", "mine", "mlx")
LOADERS = {f"week{week}": week for week in WEEK_MODELS}
ENGINE = "engine"  # default loader: the serving engine, not a week's decoding loop

# Engine-only options and `batch --record`, with the rest of the error "only the engine …".
ENGINE_ONLY = {
    **{name: each.engine_only for name, each in options_of(EngineArgs).items() if each.engine_only},
    "record": "records events",
}
COURSE_COMMANDS = ("main", "chat", "batch", "bench")  # commands that also run the course's models
API_KEY_VARIABLE = "TINY_LLM_API_KEY"


def api_key(argument: str | None) -> str | None:
    """API key from `--api-key` or `API_KEY_VARIABLE`; None if neither is set."""
    if argument == "":  # for example from an unset shell variable; must not disable authentication
        raise UserError("--api-key must not be empty; omit it, or pass a key.")
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


def add_flag(
    parser: Any, names: str, text: str, kind: Any = None, default: Any = None, **options: Any
) -> None:
    """Adds a flag to a parser or group.

    Args:
        names: flag, aliases and metavar, e.g. "--max-tokens N".
        kind: argument type, or the choices.
    """
    if isinstance(kind, list | tuple):
        metavar = "{" + ",".join(map(str, kind)) + "}"
        options |= {"choices": kind, "type": type(kind[0]), "metavar": metavar}
    elif kind is not None:
        options["type"] = kind
    flags = [name for name in names.split() if name.startswith("--")]
    if rest := names.split()[len(flags) :]:
        options["metavar"] = rest[0]
    if default is not None:
        options["default"] = default
    parser.add_argument(*flags, help=text, **options)


def add_model_arguments(parser: argparse.ArgumentParser, command: str) -> None:
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
        "week1 to week3: that week's model and decoding loop, which applies top-p and top-k before "
        "the temperature; engine (default, except with --solution mine): the serving engine, which "
        "applies them after it",
        [*LOADERS, ENGINE],
    )
    flag(
        "--enable-flash-attn",
        "attention that never materializes the L×S scores (week2 only); default on the CPU, "
        "where it is faster",
        action=argparse.BooleanOptionalAction,
    )
    add_engine_arguments(parser, command)


def add_engine_arguments(parser: argparse.ArgumentParser, command: str) -> None:
    add_options(parser, EngineArgs, command)
    add_flag(parser, "--device", "device to run on; by default, gpu if available", ["cpu", "gpu"])


def add_options(parser: argparse.ArgumentParser, cls: Any, command: str) -> None:
    """Adds a command's flags for a dataclass's options.

    The value of an omitted flag is `flag_default()`, which is None for most options.
    """
    drafts: Any = None  # a group of mutually exclusive flags
    for name, option in options_of(cls).items():
        if command not in option.commands:
            continue
        others: dict[str, Any] = {"dest": name, **option.repeat}
        kind: Any = option.choices or _argument_type(option)
        notes = [option.shown_default] if option.shown_default else []
        if option.engine_only and command in COURSE_COMMANDS:
            notes.insert(0, "engine only")
        if option.parse is bool:
            kind = None
            if option.default:
                others["action"] = argparse.BooleanOptionalAction
            else:  # unlike store_true, None if omitted
                others |= {"action": "store_const", "const": True}
        if name in ("draft_model", "speculative"):
            drafts = drafts or parser.add_mutually_exclusive_group()
        add_flag(
            drafts if name in ("draft_model", "speculative") else parser,
            f"{option.flag or flag_name(name)} {option.alias} {option.metavar or ''}",
            option.help + (f" ({'; '.join(notes)})" if notes else ""),
            kind,
            option.flag_default(),
            **others,
        )


def _argument_type(option: Option) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            return option.from_text(text)
        except UserError as error:
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from error

    parse.__name__ = option.parse.__name__  # argparse prints this name in "invalid int value"
    return parse


def given_options(args: argparse.Namespace, cls: Any) -> dict[str, Any]:
    """Keyword arguments of a dataclass from its flags, without those that are None."""
    names = [name for name, option in options_of(cls).items() if option.commands]
    return {name: getattr(args, name) for name in names if getattr(args, name, None) is not None}


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

    The default of `args.loader` is the engine, or a week's model for --solution mine, with
    --enable-flash-attn or --no-enable-flash-attn, or if the extension is not built and Week 1
    supports the given flags.

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
    needs_engine = beyond_week1 or any(is_set(args, name) for name in ENGINE_ONLY)
    prefers_engine = args.solution == "ref" and (needs_engine or kernels.is_built())
    if args.loader == ENGINE or (is_unspecified and prefers_engine):
        kernels.extension()  # raises before the model is loaded if the extension is not built
        EngineArgs("", **given_options(args, EngineArgs))  # checks the combination
        args.loader, args.enable_flash_attn = ENGINE, False
        return
    for name, reason in ENGINE_ONLY.items():
        if is_set(args, name):
            raise UserError(
                f"{flag_name(name)}: only the engine {reason}; omit it, or omit --loader, "
                "--solution and --enable-flash-attn."
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
    for name in ("loader", "enable_flash_attn", *ENGINE_ONLY):
        if is_set(args, name):
            raise UserError(f"{flag_name(name)} has no effect with --solution mlx; omit it.")


def is_set(args: argparse.Namespace, name: str) -> bool:
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
