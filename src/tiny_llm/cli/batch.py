"""Continuous batching of sixteen built-in prompts, with a live view."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..demo import BATCH_PROMPTS
from ..errors import UserError
from ..generate import resolve_max_tokens
from .backends.batch_runs import (
    BatchRun,
    EngineBatchRun,
    EngineState,
    RequestProgress,
    open_batch_run,
    peak_memory,
)
from .backends.local import open_checkpoint
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
PAGES_WIDTH = 30  # width of the page usage bar in characters


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


def batch_table(run: BatchRun, num_prompts: int, seconds: float) -> Group:
    batch = run.progress()
    table = Table(expand=True, box=None, header_style="bold", padding=(0, 1))
    for name, width, justify in (("slot", 6, "right"), ("prompt", 6, "right")):
        table.add_column(name, width=width, justify=justify)  # type: ignore[arg-type]
    table.add_column("state", width=17)
    table.add_column("tokens", width=6, justify="right")
    table.add_column("output so far", ratio=1)
    for slot, progress in enumerate(batch.slots):
        table.add_row(str(slot), *_cells(progress, "decoding"))
    # An idle row keeps the table's height constant. An engine run has no prompts in prefill without
    # a slot, so it needs no idle row.
    idle: Sequence[None] = [None] if batch.engine is None else []
    upcoming: Sequence[RequestProgress | None] = batch.prefilling or idle
    for progress in upcoming:
        table.add_row("next", *_cells(progress, "waiting for slot"), style="cyan")
    names = " ".join(map(str, batch.waiting)) or "–"
    lines: list[RenderableType] = [Text(f" waiting  {names}", overflow="ellipsis", no_wrap=True)]
    if batch.engine is not None:
        lines += [_pages(batch.engine), Text(f" {batch.engine}", style="dim")]
    finished = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=num_prompts, completed=len(run.outputs), width=30)
    finished.add_row(" finished", bar, f"{len(run.outputs)} of {num_prompts}")
    speed = Text(f" {speed_line(batch.started, seconds)}", style="dim")
    return Group(table, Text(), *lines, finished, speed)


def _cells(progress: RequestProgress | None, prefilled_state: str) -> list[RenderableType]:
    """Cells of a row without its label; `prefilled_state` is shown after prefill."""
    if progress is None:
        return [Text("–", style="dim"), Text("idle", style="dim"), "", ""]
    if progress.prefilled < progress.prompt_tokens:
        state = Text(f"prefill {progress.prefilled}/{progress.prompt_tokens}", style="yellow")
    else:
        state = Text(prefilled_state, style="green")
    return [str(progress.index), state, str(progress.new_tokens), _Tail(progress.text)]


def _pages(state: EngineState) -> Text:
    pages = state.pages
    total = pages.used + pages.cached + pages.free
    kinds = (
        ("shared", pages.shared, "█", "magenta"),
        ("exclusive", pages.used - pages.shared, "█", "green"),
        ("cached", pages.cached, "▒", "blue"),
        ("free", pages.free, "░", "dim"),
    )
    line, drawn, counted = Text(" pages    ", no_wrap=True, overflow="ellipsis"), 0, 0
    for _, count, character, style in kinds:
        counted += count
        end = round(PAGES_WIDTH * counted / total)
        line.append(character * (end - drawn), style)
        drawn = end
    names = ", ".join(f"{count} {name}" for name, count, _, _ in kinds)
    return line.append(f" {names} of {total}")


def speed_line(started: Sequence[RequestProgress], seconds: float) -> str:
    """Token counts, and rates over the whole run: steps mix prefill and decoding."""
    prompt = sum(progress.prefilled for progress in started)
    generated = sum(progress.new_tokens for progress in started)
    seconds = max(seconds, 1e-9)
    return (
        f"prompt: {prompt} tokens, {prompt / seconds:.1f} tokens/s | "
        f"generation: {generated} tokens, {generated / seconds:.1f} tokens/s | {seconds:.1f} s"
    )


class PlainLines:
    """Prints a line when a request starts, and its output when it finishes."""

    def __init__(self, console: Console, questions: Sequence[str]):
        self._console = console
        self._questions = questions
        self._started: set[int] = set()
        self._finished_indices: set[int] = set()

    def update(self, run: BatchRun) -> None:
        waiting = set(run.progress().waiting)
        for index, question in enumerate(self._questions):
            if index not in waiting | self._started:
                self._started.add(index)
                self._print(f"[{index}] started: {question}")
        for index, output in run.outputs.items():
            if index not in self._finished_indices:
                self._finished_indices.add(index)
                self._print(f"[{index}] finished: {' '.join(output.split())}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)


class _Tail:
    """Single-line tail of a text, cropped to the cell's width."""

    def __init__(self, text: str):
        self._text = " ".join(text.split())

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        tail = self._text
        if cell_len(tail) > options.max_width:
            tail = tail[-options.max_width + 1 :]
            while tail and cell_len(tail) > options.max_width - 1:  # wide characters
                tail = tail[1:]
            tail = "…" + tail
        yield Text(tail, no_wrap=True, overflow="crop")


if __name__ == "__main__":
    sys.exit(main())
