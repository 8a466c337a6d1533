"""The flags that commands share, and their checks."""

import argparse
import os
from collections.abc import Iterable

from ... import kernels
from ...errors import UserError
from ...models import ATTENTION_BACKENDS, BUNDLED_MODELS, LOAD_FORMATS, SHORT_NAMES, WEEK_MODELS
from ...models.parallel.default_group import num_launched_ranks
from ...sampler import Sampler, make_sampler
from .input_text import validate_utf8

SOLUTIONS = {"tiny_llm": "tiny_llm", "ref": "tiny_llm", "mine": "mine", "mlx": "mlx"}
LOADERS = {f"week{week}": week for week in WEEK_MODELS}
ENGINE = "engine"  # what answers where no --loader is given

API_KEY_VARIABLE = "TINY_LLM_API_KEY"


def api_key(argument: str | None) -> str | None:
    """API key given by `--api-key` or the environment variable, or None.

    Raises:
        UserError: it is not UTF-8.
    """
    key = argument or os.environ.get(API_KEY_VARIABLE)
    return validate_utf8("the API key", key) if key else None


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, whose code runs it, and where."""
    parser.add_argument(
        "--model",
        metavar="NAME",
        help=f"{', '.join([*BUNDLED_MODELS, *SHORT_NAMES])}, a hub id (owner/name) or a folder",
    )
    parser.add_argument(
        "--draft-model", metavar="NAME", help="a smaller model that drafts tokens to be verified"
    )
    add_load_format(parser)
    add_speculative_argument(parser)
    parser.add_argument(
        "--solution",
        metavar="{" + ",".join(SOLUTIONS) + "}",
        help="tiny_llm (or ref): this package; mine: the learner's tree, the default where there "
        "is one; mlx: mlx_lm, as a baseline",
    )
    parser.add_argument(
        "--loader",
        metavar="{" + ",".join([*LOADERS, ENGINE]) + "}",
        help="the model and the loop of a week, whose samplers filter before the temperature; or "
        "the engine, which filters after it, and is the default but for --solution mine",
    )
    parser.add_argument(
        "--device", metavar="{cpu,gpu}", help="where to compute (gpu where there is one)"
    )
    parser.add_argument(
        "--enable-flash-attn",
        action=argparse.BooleanOptionalAction,
        help="attend without an L×S matrix (week2); the default where it is faster: on the CPU",
    )
    add_attention_backend(parser)
    add_tensor_parallel_size(parser)


def add_attention_backend(parser: argparse.ArgumentParser) -> None:
    """How the engine attends."""
    parser.add_argument(
        "--attention-backend",
        metavar="{" + ",".join(ATTENTION_BACKENDS) + "}",
        help="how the engine attends: paged reads pages where they are; flash and reference gather "
        "them first, and are slower, for comparing",
    )


def check_attention_backend(args: argparse.Namespace) -> None:
    """Refuses an unknown `--attention-backend`.

    Raises:
        UserError: it is unknown.
    """
    if args.attention_backend not in (None, *ATTENTION_BACKENDS):
        raise UserError(
            f"--attention-backend '{args.attention_backend}' is unknown; give "
            f"{_listed(ATTENTION_BACKENDS)}."
        )


def add_load_format(parser: argparse.ArgumentParser) -> None:
    """What the weights are."""
    parser.add_argument(
        "--load-format",
        default="auto",
        metavar="{" + ",".join(LOAD_FORMATS) + "}",
        help="auto reads the weights; dummy draws random ones in the shapes of config.json",
    )


def add_tensor_parallel_size(parser: argparse.ArgumentParser) -> None:
    """On how many processes the engine computes a model."""
    parser.add_argument(
        "--tensor-parallel-size",
        type=int,
        default=num_launched_ranks(),
        metavar="N",
        help="split the model among N processes of this machine, or the N that mlx.launch or "
        "mpirun has started (engine only)",
    )


def check_tensor_parallel_size(args: argparse.Namespace) -> None:
    """Refuses a `--tensor-parallel-size` below 1, and one of a part of the ranks that there are.

    Raises:
        UserError: it is.
    """
    if num_launched_ranks() not in (1, args.tensor_parallel_size):
        raise UserError(
            f"--tensor-parallel-size is {args.tensor_parallel_size}, but the launcher started "
            f"{num_launched_ranks()} ranks; leave it out."
        )
    if args.tensor_parallel_size < 1:
        raise UserError(
            f"--tensor-parallel-size is {args.tensor_parallel_size}; it must be at least 1."
        )


def add_speculative_argument(parser: argparse.ArgumentParser) -> None:
    """Guesses without a second model."""
    parser.add_argument(
        "--speculative",
        metavar="{ngram}",
        help="guess what followed the same tokens earlier in the text, to be verified",
    )


def check_speculative(args: argparse.Namespace) -> None:
    """Refuses other kinds of guesses than there are, and two at a time.

    Raises:
        UserError: it is as said.
    """
    if args.speculative not in (None, "ngram"):
        raise UserError(f"--speculative '{args.speculative}' is unknown; give ngram.")
    if args.speculative is not None and args.draft_model is not None:
        raise UserError(
            "--speculative and --draft-model would guess the same tokens; leave one of them out."
        )


def add_sampling_arguments(parser: argparse.ArgumentParser) -> None:
    """How tokens are chosen, and how many."""
    parser.add_argument(
        "--sampler-temp", type=float, default=0.0, metavar="T", help="temperature; 0 is greedy"
    )
    parser.add_argument(
        "--sampler-top-p", type=float, metavar="P", help="keep the likeliest tokens of mass P"
    )
    parser.add_argument(
        "--sampler-top-k", type=int, metavar="K", help="keep the K likeliest tokens"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="makes sampling repeatable; random if not given"
    )
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="stop after N new tokens (none: context's end)"
    )
    parser.add_argument(
        "--enable-thinking", action="store_true", help="let the model think before it answers"
    )


def add_batch_arguments(parser: argparse.ArgumentParser) -> None:
    """How a batch is made up."""
    parser.add_argument(
        "--batch-size", type=int, default=5, metavar="N", help="how many requests decode together"
    )
    parser.add_argument(
        "--prefill-step", type=int, default=128, metavar="N", help="tokens of a prompt's chunk"
    )


def check_model_arguments(args: argparse.Namespace, needs_cache: bool = False) -> None:
    """Refuses what is unknown, and what does not work together, with a sentence that says why.

    Afterwards `args.solution` has its full name and `args.loader` a value, if it can have one. Our
    own code answers with the engine, `ENGINE`, unless a flag asks for a week's loop.

    Args:
        args: with the flags of `add_model_arguments`.
        needs_cache: Week 1, which has none, cannot do what the command does.

    Raises:
        UserError: the first flag that cannot be honoured.
    """
    if args.solution not in SOLUTIONS:
        raise UserError(f"--solution '{args.solution}' is unknown; give {_listed(SOLUTIONS)}.")
    args.solution = SOLUTIONS[args.solution]
    check_speculative(args)
    check_attention_backend(args)
    check_load_format(args)
    check_tensor_parallel_size(args)
    if args.load_format == "dummy" and args.solution == "mlx":
        raise UserError(
            "--load-format dummy draws weights for tiny-llm's own models, which --solution mlx "
            "does not use; leave one of the two out."
        )
    if args.loader is not None and args.loader not in (*LOADERS, ENGINE):
        raise UserError(
            f"--loader '{args.loader}' is unknown; this version has {', '.join(LOADERS)} or "
            f"{ENGINE}."
        )
    if args.solution == "mlx":
        if args.loader is not None:
            raise UserError(
                "--loader chooses a week's model of tiny-llm, or its engine, which --solution mlx "
                "does not use; "
                "leave one of the two out."
            )
        for flag in ("enable_flash_attn", "speculative", "attention_backend"):
            if getattr(args, flag) is not None:
                name = flag.replace("_", "-")
                raise UserError(f"--{name} has no effect on --solution mlx; leave it out.")
        if args.tensor_parallel_size > 1:
            raise UserError("--tensor-parallel-size has no effect on --solution mlx; leave it out.")
        return
    beyond_week1 = needs_cache or args.draft_model is not None
    if args.loader == ENGINE and args.enable_flash_attn is not None:
        raise UserError(
            "--enable-flash-attn: the engine attends through paged attention, or as "
            "--attention-backend says; leave it out, or use --loader week2."
        )
    is_free = args.loader is None and args.enable_flash_attn is None
    is_ours = args.solution == "tiny_llm" and (beyond_week1 or kernels.is_built())
    if args.loader == ENGINE or (is_free and is_ours):
        kernels.extension()  # if it is missing, better said now than after loading
        args.loader, args.enable_flash_attn = ENGINE, False
        return
    if args.speculative is not None:
        raise UserError(
            "--speculative: only the engine guesses from the text; leave out --loader, --solution "
            "and --enable-flash-attn, or give --draft-model instead."
        )
    if args.attention_backend is not None:
        raise UserError(
            "--attention-backend: only the engine can choose; leave out --loader, --solution and "
            "--enable-flash-attn."
        )
    if args.tensor_parallel_size > 1:
        raise UserError(
            "--tensor-parallel-size: only the engine splits a model among processes; leave out "
            "--loader, --solution and --enable-flash-attn."
        )
    if args.loader is None:
        wants_week2 = beyond_week1 or args.enable_flash_attn or kernels.is_built()
        args.loader = "week2" if wants_week2 else "week1"
    if needs_cache and args.loader == "week1":
        raise UserError(
            "--loader week1 has no cache, and so no batches; use --loader week2, week3 or "
            "--solution mlx."
        )
    if args.enable_flash_attn and args.loader != "week2":
        raise UserError(
            f"--enable-flash-attn: {args.loader} does not attend through that kernel; leave it "
            "out, or use --loader week2."
        )
    if args.draft_model is not None and args.loader == "week1":
        raise UserError(
            "--draft-model: week1 has no cache to rewind when a draft is wrong; leave it out, or "
            "use --loader week2 or week3."
        )
    if args.enable_flash_attn is False and args.loader == "week3":
        raise UserError(
            "--no-enable-flash-attn: week3 attends through paged attention alone; leave it out, or "
            "use --loader week2."
        )
    if args.loader != "week1":
        kernels.extension()  # if it is missing, better said now than after loading
    if args.enable_flash_attn is None:
        args.enable_flash_attn = args.loader == "week2" and kernels.runs_on_default_device()


def check_load_format(args: argparse.Namespace) -> None:
    """Refuses an unknown `--load-format`.

    Raises:
        UserError: it is unknown.
    """
    if args.load_format not in LOAD_FORMATS:
        raise UserError(
            f"--load-format '{args.load_format}' is unknown; give {' or '.join(LOAD_FORMATS)}."
        )


def check_batch_arguments(args: argparse.Namespace) -> None:
    """As `check_model_arguments`, and refuses what a batch cannot do.

    Raises:
        UserError: the first flag that cannot be honoured.
    """
    check_model_arguments(args, needs_cache=True)
    if args.draft_model is not None and args.loader != ENGINE:
        raise UserError(
            "--draft-model: drafts are verified for one request at a time, not for a batch, except "
            "by the engine; leave it out, or --loader, --solution and --enable-flash-attn."
        )
    for flag, value in (("--batch-size", args.batch_size), ("--prefill-step", args.prefill_step)):
        if value < 1:
            raise UserError(f"{flag} is {value}; it must be at least 1.")


def sampler_from_args(args: argparse.Namespace) -> Sampler:
    """The sampler that the flags ask for.

    Raises:
        UserError: a flag outside its range.
    """
    if args.max_tokens is not None and args.max_tokens < 1:
        raise UserError(f"--max-tokens is {args.max_tokens}; it must be at least 1.")
    if args.seed is not None and not 0 <= args.seed < 2**64:
        raise UserError(f"--seed is {args.seed}; it must be between 0 and 2**64 - 1.")
    try:
        return make_sampler(
            args.sampler_temp, top_p=args.sampler_top_p, top_k=args.sampler_top_k, seed=args.seed
        )
    except ValueError as error:
        raise UserError(str(error)) from error


def _listed(names: Iterable[str]) -> str:
    *head, last = names
    return f"{', '.join(head)} or {last}" if head else last
