"""Sixteen prompts through continuous batching, with a live view."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
from rich.console import Console
from rich.live import Live

from ..demo.prompts import BATCH_PROMPTS
from ..errors import UserError
from .backends.checkpoint import open_checkpoint
from .batching.engine_run import EngineBatchRun
from .batching.runs import BatchRun, open_batch_run
from .batching.view import PlainLines, batch_table, speed_line
from .parsing.arguments import (
    ENGINE,
    add_batch_arguments,
    add_model_arguments,
    add_sampling_arguments,
    check_batch_arguments,
    sampler_from_args,
)
from .parsing.command import CommandParser, console, run_command

REDRAW_SECONDS = 0.1  # drawing takes a few milliseconds that decoding could use
DEFAULT_MAX_TOKENS = 512


def main(argv: Sequence[str] | None = None, prog: str = "batch-main") -> int:
    """Runs the command; the exit status is 0, or 2 if the flags ask for what cannot be."""
    return run_command(prog, lambda: _answer_all(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    """The command's flags."""
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.batch")
    add_model_arguments(parser)
    add_sampling_arguments(parser)
    add_batch_arguments(parser)
    parser.add_argument(
        "--plain", action="store_true", help="lines instead of the live view, as into a file"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="write what happened as JSON (engine)"
    )
    parser.add_argument(
        "--kv-cache-bytes",
        type=int,
        metavar="N",
        help="memory for keys and values (engine); enough for the batch if not given",
    )
    parser.set_defaults(max_tokens=DEFAULT_MAX_TOKENS)
    return parser


def run_live(run: BatchRun, num_prompts: int, screen: Console) -> float:
    """Steps through a run while a table on `screen` shows it; returns the seconds it took."""
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        drawn_at = -REDRAW_SECONDS  # the first step is shown

        def draw(seconds: float) -> None:
            nonlocal drawn_at
            if seconds - drawn_at >= REDRAW_SECONDS or run.is_done:
                drawn_at = seconds
                live.update(batch_table(run, num_prompts, seconds), refresh=True)

        return _run(run, draw)


def run_plain(run: BatchRun, questions: list[str], screen: Console) -> float:
    """Steps through a run with a line for each event; returns the seconds it took."""
    lines = PlainLines(screen, questions)
    return _run(run, lambda seconds: lines.update(run))


def _run(run: BatchRun, after_step: Callable[[float], None]) -> float:
    started = time.perf_counter()
    while not run.is_done:
        run.step()
        after_step(time.perf_counter() - started)
    return time.perf_counter() - started


def _answer_all(args: argparse.Namespace) -> int:
    check_batch_arguments(args)
    _check_engine_arguments(args)
    sampler = sampler_from_args(args)
    checkpoint = open_checkpoint(args)
    prompts = [
        checkpoint.encode_chat([{"role": "user", "content": prompt}]) for prompt in BATCH_PROMPTS
    ]
    context = checkpoint.mlx_model.args.max_position_embeddings
    longest = max(map(len, prompts))
    if longest >= context:
        raise UserError(
            f"the longest of the prompts has {longest} tokens, and the context of "
            f"'{checkpoint.name}' holds {context} with the answer; use another model."
        )
    limits = [min(args.max_tokens, context - len(prompt)) for prompt in prompts]
    run = open_batch_run(args, checkpoint, prompts, limits, sampler)
    questions = [prompt.splitlines()[-1] for prompt in BATCH_PROMPTS]
    screen = Console(highlight=False)
    if screen.is_terminal and not args.plain:
        seconds = run_live(run, len(prompts), screen)
    else:
        seconds = run_plain(run, questions, console)
    if isinstance(run, EngineBatchRun) and args.record is not None:
        run.write_recording(args.record)
        console.print(f"recorded: {args.record}", soft_wrap=True)
    for index, answer in sorted(run.outputs.items()):
        print(f"[{index}] {questions[index]}\n{answer.strip()}\n")
    state = run.state()
    if state is not None:
        print(state)
    print(
        f"{len(prompts)} requests | {speed_line(list(run.all_progress()), seconds)} | "
        f"peak memory: {mx.get_peak_memory() / 1e9:.3f} GB"
    )
    return 0


def _check_engine_arguments(args: argparse.Namespace) -> None:
    """Refuses flags that only the engine can honour, where another serves."""
    for flag, value in (("--record", args.record), ("--kv-cache-bytes", args.kv_cache_bytes)):
        if value is not None and args.loader != ENGINE:
            raise UserError(f"{flag} is for the engine; leave it out, or use --loader engine.")
    if args.record is not None and not args.record.absolute().parent.is_dir():
        raise UserError(f"--record: there is no folder '{args.record.parent}'.")


if __name__ == "__main__":
    sys.exit(main())
