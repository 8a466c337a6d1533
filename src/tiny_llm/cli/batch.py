"""Continuous batching of sixteen built-in prompts, with a live view."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from ..demo import BATCH_PROMPTS
from ..errors import UserError
from ..generate import resolve_max_tokens
from .backends.local import open_checkpoint
from .batching.runs import BatchRun, EngineBatchRun, open_batch_run, peak_memory
from .batching.view import PlainLines, batch_table, speed_line
from .parsing.arguments import (
    add_batch_arguments,
    add_flag,
    add_model_arguments,
    add_sampling_arguments,
    check_batch_arguments,
    sampler_from_args,
)
from .parsing.command import CommandParser, SafeConsole, console, print_text, run_command

# Minimum seconds between redraws, because each delays decoding by milliseconds.
REDRAW_SECONDS = 0.1
DEFAULT_MAX_TOKENS = 512


def main(argv: Sequence[str] | None = None, prog: str = "batch") -> int:
    return run_command(prog, lambda: _batch(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.batch")
    add_model_arguments(parser, "batch")
    add_sampling_arguments(parser)
    add_batch_arguments(parser)
    flag = partial(add_flag, parser)
    flag(
        "--plain",
        "print lines instead of the live view; default if the output is not a terminal",
        action="store_true",
    )
    flag("--record FILE", "record engine events as JSON (engine only)", Path)
    parser.set_defaults(max_tokens=DEFAULT_MAX_TOKENS)
    return parser


def run_live(run: BatchRun, num_prompts: int, screen: Console) -> float:
    """Runs a batch with a live table on `screen`; returns its duration in seconds."""
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        drawn_at = -REDRAW_SECONDS  # in the past, so that the first step draws the table

        def draw(seconds: float) -> None:
            nonlocal drawn_at
            if seconds - drawn_at >= REDRAW_SECONDS or run.is_done:
                drawn_at = seconds
                live.update(batch_table(run, num_prompts, seconds), refresh=True)

        return _run(run, draw)


def run_plain(run: BatchRun, questions: list[str], screen: Console) -> float:
    lines = PlainLines(screen, questions)
    return _run(run, lambda seconds: lines.update(run))


def _run(run: BatchRun, after_step: Callable[[float], None]) -> float:
    started = time.perf_counter()
    while not run.is_done:
        run.step()
        after_step(time.perf_counter() - started)
    return time.perf_counter() - started


def _batch(args: argparse.Namespace) -> int:
    check_batch_arguments(args)
    if args.record is not None and not args.record.absolute().parent.is_dir():
        raise UserError(f"--record: the folder '{args.record.parent}' does not exist.")
    sampler = sampler_from_args(args)
    checkpoint = open_checkpoint(args)
    prompts = [
        checkpoint.encode_chat([{"role": "user", "content": prompt}]) for prompt in BATCH_PROMPTS
    ]
    context = checkpoint.mlx_model.args.max_position_embeddings
    limits: list[Any] = [
        resolve_max_tokens(len(prompt), args.max_tokens, context) for prompt in prompts
    ]
    run = open_batch_run(args, checkpoint, prompts, limits, sampler)
    questions = [prompt.splitlines()[-1] for prompt in BATCH_PROMPTS]
    screen = SafeConsole()
    if screen.is_terminal and not args.plain:
        seconds = run_live(run, len(prompts), screen)
    else:
        seconds = run_plain(run, questions, console)
    if isinstance(run, EngineBatchRun) and run.recorder is not None:
        if not run.recorder.close():
            raise UserError(f"the recording '{args.record}' is incomplete; see the error above.")
        console.print(f"recorded: {args.record}", soft_wrap=True)
    for index, output in sorted(run.outputs.items()):
        print_text(f"[{index}] {questions[index]}\n{output.strip()}\n")
    progress = run.progress()
    if progress.engine is not None:
        print(progress.engine)
    print(
        f"{len(prompts)} requests | {speed_line(progress.started, seconds)} | "
        f"peak memory: {peak_memory(run) / 1e9:.3f} GB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
