"""`pdm run progress`: which tasks of the course pass their tests."""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .build import STALE, is_stale
from .choice import add_solution_argument, chosen_tree
from .outcomes import Outcome, Runner, first_line
from .tasks import DAYS, TASKS, Day
from .tree import ROOT


def main(argv: list[str] | None = None) -> int:
    """Prints the table; the exit status is 0 if all tasks are done, 1 if not."""
    parser = argparse.ArgumentParser(prog="progress", description=__doc__)
    parser.add_argument("--week", type=int, metavar="N", help="one week alone")
    add_solution_argument(parser)
    args = parser.parse_args(argv)
    tree = chosen_tree(parser, args.solution)
    days = [day for day in DAYS if args.week in (None, day.week)]
    days = [day for day in days if (ROOT / day.test_file).exists()]
    if not days:
        parser.error(f"there are no tests of week {args.week}")
    console = Console(highlight=False)
    if tree is not None and is_stale(tree):
        console.print(f"[yellow]{STALE}[/]")
    outcomes = outcomes_by_task(tree, days, console)
    table = Table("task", "", "what", "next", title="the solution" if tree is None else str(tree))
    done = 0
    for day in days:
        table.add_section()
        for task in day.tasks:
            mark, hint = state(outcomes.get(task.id, []))
            done += mark == DONE
            table.add_row(task.id, mark, task.title, hint)
    console.print(table)
    total = sum(len(day.tasks) for day in days)
    console.print(f"{done} of {total} tasks done")
    return 0 if done == total else 1


DONE = "[green]done[/]"


def state(outcomes: list[Outcome]) -> tuple[str, str]:
    """A task's mark, and what to look at next."""
    failed = [outcome for outcome in outcomes if outcome.passed is False]
    if not outcomes:
        return "[dim]no tests[/]", ""
    if not failed:
        passed = any(outcome.passed for outcome in outcomes)
        return (DONE, "") if passed else ("[yellow]skipped[/]", "its tests do not run here")
    waiting = next((outcome for outcome in failed if outcome.is_your_turn), None)
    if waiting is not None:
        return "[dim]to write[/]", ""
    hint = f"{len(failed)} of {len(outcomes)} tests fail: {first_line(failed[0].message)}"
    return "[red]fails[/]", hint.replace("[", "\\[")


def outcomes_by_task(
    tree: Path | None, days: list[Day], console: Console
) -> dict[str, list[Outcome]]:
    """Runs the tests of some days, each day in a process of its own."""
    found: dict[str, list[Outcome]] = defaultdict(list)
    with Runner() as runner, console.status("running the tests") as status:
        for day in days:
            status.update(f"running the tests of {day.name}")
            for outcome in runner.run(tree, [day.test_file], "-m", "not slow", "--tb=line"):
                if outcome.task in TASKS:
                    found[outcome.task].append(outcome)
                elif not outcome.test:  # the process died: none of the day's tasks is done
                    for task in day.tasks:
                        found[task.id].append(outcome)
    return found


if __name__ == "__main__":
    sys.exit(main())
