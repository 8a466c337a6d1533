"""Measurements of the scoreboard: tests, and engines in worker processes."""

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmark.gguf_file import write_gguf
from benchmark.model_costs import ModelCosts
from benchmark.roofline import Machine
from benchmark.systems.client import WorkerError, WorkerProcess
from tools.course.result_cache import ResultCache
from tools.course.results import is_done, outcomes_by_task
from tools.course.reveal import tasks_begun
from tools.course.runner import Outcome
from tools.course.tasks import DAYS, OPTIONAL_WEEKS, TASKS, Task, day_of, day_of_task
from tools.course.tree import ROOT, environment

from .score import GOODPUT, METRICS, Row

# Tasks required by each week's model.
ENGINE_TASKS = {1: ("1.5.3",), 2: ("2.1.3", "2.1.4"), 3: ("3.1.3", "3.2.2", "3.2.3")}
LAST_MODEL = max(ENGINE_TASKS)
# Task of Week 4 -> value of TINY_LLM_MATMUL, best first. The kernels run in Week 3's model.
# "pairs" is opt-in, as it beats "panels" on some machines only.
MATMUL_KERNELS = {
    "4.4.1": "panels",
    "4.3.3": "prefetched",
    "4.3.2": "prepacked",
    "4.2.2": "vectors",
    "4.2.1": "factored",
}
# Task of Week 4 -> value of TINY_LLM_ATTENTION, best first.
ATTENTION_KERNELS = {"4.6.3": "split", "4.6.2": "online", "4.6.1": "scores"}
# Days required for measuring goodput: the scheduler and the load generator.
GOODPUT_DAYS = (day_of(3, 3), day_of(3, 4), day_of(5, 3))
# Flags of `bench`. Goodput is the highest over the request rates.
BENCH_FLAGS = "--loader engine --batch-size 16 --num-seqs 32 --request-rate 8 16 32 64"
SLO = "ttft:200 tpot:50"
SECONDS = 90  # timeout per measurement
MAX_CACHED_BYTES = 64e6  # bytes of weights that may fit in a CPU cache


def run_tests(tree: Path | None, console: Console) -> dict[str, list[Outcome]]:
    """Runs the tests that determine the learner's best model and kernels.

    Tests the models from the last week's down, then the kernels from the fastest down, each until
    one passes. Returns outcomes by task id, including the cached ones of all other days.
    """
    begun = TASKS.keys() if tree is None else tasks_begun(tree)
    cache = ResultCache(tree)
    cached = [day for day in DAYS if cache.get(day) is not None]
    outcomes = outcomes_by_task(tree, cached, console)

    def passes(*tasks: str) -> bool:
        if not begun >= set(tasks):
            return False
        days = {day_of_task(task).id: day_of_task(task) for task in tasks}
        outcomes.update(outcomes_by_task(tree, list(days.values()), console))
        return all(is_done(outcomes.get(task, [])) for task in tasks)

    if tree is not None:
        week = next((week for week in reversed(ENGINE_TASKS) if passes(*ENGINE_TASKS[week])), 0)
        if week == LAST_MODEL:
            for kernels in (MATMUL_KERNELS, ATTENTION_KERNELS):
                for task in kernels:
                    if passes(task):
                        break
    return {task: found for task, found in outcomes.items() if task in begun}


def untested_days(tree: Path | None, outcomes: Mapping[str, Sequence[Outcome]]) -> list[str]:
    """Ids of days with started tasks whose tests have not run since the code changed."""
    begun = TASKS.keys() if tree is None else tasks_begun(tree)
    return list(
        dict.fromkeys(day_of_task(task).id for task in TASKS if task in begun - {*outcomes})
    )


def tasks_shown(begun: Iterable[str]) -> list[Task]:
    """Tasks to show; optional ones only if begun or in a begun optional week."""
    begun = set(begun)
    weeks = OPTIONAL_WEEKS & {TASKS[task].week for task in begun}
    return [
        task
        for task in TASKS.values()
        if not task.is_optional or task.id in begun or task.week in weeks
    ]


def count_tasks(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, list[int]]:
    """[completed tasks, shown tasks], by week."""
    counts: dict[str, list[int]] = {}
    for task in tasks_shown(outcomes):
        of_week = counts.setdefault(str(task.week), [0, 0])
        of_week[0] += is_done(outcomes.get(task.id, []))
        of_week[1] += 1
    return counts


def count_tests(outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, list[int]]:
    """[passed tests, run tests] of started tasks, by week."""
    counts = {str(task.week): [0, 0] for task in tasks_shown(outcomes)}
    for task, found in outcomes.items():
        for outcome in found:
            if outcome.passed is not None:
                counts[str(TASKS[task].week)][0] += outcome.passed
                counts[str(TASKS[task].week)][1] += 1
    return counts


def kernels_of_week_4(
    outcomes: Mapping[str, Sequence[Outcome]],
) -> tuple[str | None, str | None]:
    """Best completed (matmul, attention) kernels of Week 4; None for each that is missing."""
    return _best_done(MATMUL_KERNELS, outcomes), _best_done(ATTENTION_KERNELS, outcomes)


def _best_done(kernels: Mapping[str, str], outcomes: Mapping[str, Sequence[Outcome]]) -> str | None:
    completed = (kernel for task, kernel in kernels.items() if is_done(outcomes.get(task, [])))
    return next(completed, None)


def furthest_week(outcomes: Mapping[str, Sequence[Outcome]]) -> int:
    """Last week whose model runs, or 0; 4 for Week 3's model with a kernel of Week 4."""
    weeks = [
        week
        for week, tasks in ENGINE_TASKS.items()
        if all(is_done(outcomes.get(task, [])) for task in tasks)
    ]
    week = max(weeks, default=0)
    return week + (week == LAST_MODEL and any(kernels_of_week_4(outcomes)))


@dataclass(frozen=True)
class Engine:
    """An engine, run by the worker `module` of `benchmark.systems`.

    Attributes:
        python: path of the Python interpreter.
        tree: learner's source tree with its `tiny_llm`; None for the solution's.
        matmul, attention: values of TINY_LLM_MATMUL and TINY_LLM_ATTENTION; None for the default.
        plain: run the readable loops, as a learner's kernels before Week 4.
    """

    name: str
    python: str
    module: str
    arguments: tuple[str, ...]
    tree: Path | None = None
    matmul: str | None = None
    attention: str | None = None
    plain: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """Environment of the worker."""
        chosen = {"TINY_LLM_MATMUL": self.matmul, "TINY_LLM_ATTENTION": self.attention}
        named = {variable: kernel for variable, kernel in chosen.items() if kernel is not None}
        if self.plain:
            named |= {"TINY_LLM_CPU_ISA": "portable", "TINY_LLM_FUSED": "loops"}
        return {**environment(self.tree), **named}


def course_engine(
    name: str,
    folder: Path,
    week: int,
    tree: Path | None,
    matmul: str | None = None,
    attention: str | None = None,
) -> Engine:
    """An engine with a week's model; week 4 is Week 3's model with Week 4's kernels."""
    solution = "ref" if tree is None else "mine"
    arguments = (str(folder), "--week", str(min(week, LAST_MODEL)), "--solution", solution)
    return Engine(name, sys.executable, "course_worker", arguments, tree, matmul, attention)


def find_llama(given: str | None) -> str | None:
    """Interpreter for llama.cpp: `given`, or the running interpreter if it has llama-cpp-python."""
    if given is not None:
        return given
    return sys.executable if importlib.util.find_spec("llama_cpp") else None


def llama_engine(python: str, folder: Path, work: Path, threads: int) -> Engine:
    """llama.cpp on the same weights, requantized to 4.5 bits; the file is cached in `work`.

    Raises:
        ImportError: the package `gguf` is missing.
        subprocess.CalledProcessError: the interpreter has no llama_cpp.
    """
    subprocess.run([python, "-c", "import llama_cpp"], check=True, capture_output=True)
    file = work / f"{folder.name}-Q4_0.gguf"
    if not file.exists():
        work.mkdir(parents=True, exist_ok=True)
        write_gguf(folder, file, "q4_0")
    return Engine("llama.cpp", python, "llama_cpp_worker", (str(file), "--threads", str(threads)))


def measure_engines(engines: Sequence[Engine], console: Console) -> list[Row]:
    """Measures each metric on all engines before the next metric.

    Changes in background load thus affect all engines alike. Only one engine runs at a time; the
    processes of the others are paused.
    """
    rows = [Row(engine.name) for engine in engines]
    with _workers(engines, rows) as workers:
        for metric in METRICS:
            for row, worker in zip(rows, workers, strict=True):
                if worker is None:
                    continue
                with console.status(f"{metric.label}: {row.name}"):
                    try:
                        reply = worker.ask(metric.request, SECONDS)
                    except WorkerError as error:
                        row.notes.append(f"{metric.label}: {error}")
                        workers[workers.index(worker)] = None
                        continue
                if "seconds" in reply:
                    row.speeds[metric.name] = metric.tokens_per_second(reply["seconds"])
                for key in ("note", "unsupported", "failed"):
                    if key in reply:
                        row.notes.append(f"{metric.label}: {reply[key]}")
    return rows


@contextmanager
def _workers(
    engines: Sequence[Engine], rows: Sequence[Row]
) -> Iterator[list[WorkerProcess | None]]:
    workers: list[WorkerProcess | None] = []
    with ExitStack() as stack:
        for engine, row in zip(engines, rows, strict=True):
            try:
                worker = WorkerProcess(
                    engine.python,
                    engine.module,
                    list(engine.arguments),
                    environment=engine.environment,
                )
            except WorkerError as error:
                row.notes.append(str(error))
                workers.append(None)
                continue
            workers.append(stack.enter_context(closing(worker)))
        yield workers


def serves_load(outcomes: Mapping[str, Sequence[Outcome]]) -> bool:
    """Whether all course tasks that the goodput benchmark needs have passed."""
    tasks = (task.id for day in GOODPUT_DAYS for task in day.tasks)
    return all(is_done(outcomes.get(task, [])) for task in tasks)


def measure_goodput(row: Row, folder: Path, tree: Path | None) -> None:
    """Adds the goodput that `bench` measures; `tree` is None for the solution."""
    solution = "ref" if tree is None else "mine"
    flags = f"--solution {solution} {BENCH_FLAGS} --goodput {SLO}"
    command = [sys.executable, "-m", "tiny_llm", "bench", "--model", str(folder), *flags.split()]
    try:
        completed = subprocess.run(
            command,
            env=environment(tree),
            timeout=SECONDS,
            capture_output=True,
            text=True,
            check=True,
        )
    except subprocess.TimeoutExpired:
        row.notes.append(f"goodput: takes more than {SECONDS} s")
    except subprocess.CalledProcessError as error:
        row.notes.append(f"goodput: {error.stderr.splitlines()[-1]}")
    else:
        loads = json.loads(completed.stdout.splitlines()[-1])["loads"]
        row.speeds[GOODPUT] = max(load["goodput"] for load in loads)


def roofline_row(machine: Machine, costs: ModelCosts) -> Row:
    """Row with the machine's limit for each metric: see `Metric.bound`."""
    speeds = {metric.name: metric.bound(costs, machine) for metric in METRICS}
    row = Row("this machine's limit", speeds)
    if costs.weight_bytes() < MAX_CACHED_BYTES:
        row.notes.append(
            f"the model's {costs.weight_bytes() / 1e6:.0f} MB may stay in the processor's cache, "
            "which is faster than memory, the limit of decoding in this table"
        )
    return row


def work_folder() -> Path:
    """Folder for checkpoints with random weights, and for llama.cpp's files."""
    return ROOT / "build" / "scoreboard"
