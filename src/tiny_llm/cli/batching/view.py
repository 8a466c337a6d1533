"""Display of a running batch: a live table or plain lines."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from .runs import BatchRun, EngineState, RequestProgress

PAGES_WIDTH = 30  # width of the page usage bar in characters


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
