"""Runs the tests of days without cached results (see result_cache.py)."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread

from rich.console import Console

from .build import num_cores
from .result_cache import ResultCache
from .runner import Outcome, Runner
from .tasks import TASKS, Day


def is_done(outcomes: Sequence[Outcome]) -> bool:
    """Whether at least one of a task's tests passes and none fails."""
    passed = [outcome.passed for outcome in outcomes]
    return any(passed) and False not in passed


def outcomes_by_task(
    tree: Path | None, days: list[Day], console: Console, again: bool = False
) -> dict[str, list[Outcome]]:
    """Runs the tests of several days, one thread per core (at most four).

    `tree` is a learner's source tree, or None for the solution. With `again`, ignores cached
    outcomes. Returns outcomes by task id.
    """
    cache = ResultCache(tree)
    by_day = {day.id: None if again else cache.get(day) for day in days}
    to_run = SimpleQueue[Day]()
    for day in days:
        if by_day[day.id] is None:
            to_run.put(day)
    lock = Lock()

    def work() -> None:
        with Runner() as runner:
            while not to_run.empty():
                try:
                    day = to_run.get_nowait()
                except Empty:
                    return
                outcomes = runner.run(tree, [day.test_file], "-m", "not slow", "--tb=line")
                with lock:
                    cache.put(day, outcomes)
                    by_day[day.id] = outcomes
                    left = sum(known is None for known in by_day.values())
                    console.print(f"tested day {day.id}; {left} left", style="dim")
                    status.update(f"testing what has changed: {left} of {len(days)} days left")

    if not to_run.empty():
        console.print(
            f"testing what has changed: {to_run.qsize()} of {len(days)} days", style="dim"
        )
    with console.status("testing what has changed") as status:
        workers = [Thread(target=work) for _ in range(min(4, num_cores(), to_run.qsize()))]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    found: dict[str, list[Outcome]] = defaultdict(list)
    for day in days:
        for outcome in by_day[day.id] or []:
            if outcome.task in TASKS:
                found[outcome.task].append(outcome)
            elif not outcome.test:  # the session crashed, so none of the day's tasks counts as done
                for task in day.tasks:
                    found[task.id].append(outcome)
    return found
