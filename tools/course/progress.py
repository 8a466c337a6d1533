"""`pdm run progress`: passing tasks of the course.

Runs only the days with changes since the last run: see result_cache.py.
"""

import argparse
import sys
from collections.abc import Sequence, Set

from rich.console import Console
from rich.table import Table

from .build import STALE, is_stale, require_pytest
from .results import is_done, outcomes_by_task
from .reveal import tasks_begun
from .runner import Outcome, first_line
from .solution_flag import parse_with_tree
from .tasks import DAYS, TASKS, Day
from .tree import ROOT


def main(argv: list[str] | None = None) -> int:
    """Prints the table of tasks. Exit status: 0, or 1 if some tests could not run."""
    parser = argparse.ArgumentParser(prog="progress", description=__doc__)
    parser.add_argument("--week", type=int, metavar="N", help="only this week")
    parser.add_argument("--again", action="store_true", help="also run unchanged days")
    args, tree = parse_with_tree(parser, argv)
    require_pytest("progress")
    days = [day for day in DAYS if args.week in (None, day.week)]
    days = [day for day in days if (ROOT / day.test_file).exists()]
    if not days:
        parser.error(f"week {args.week} has no tests")
    console = Console(highlight=False, emoji=False)
    if tree is not None and is_stale(tree):
        console.print(f"[yellow]{STALE}[/]")
    begun = TASKS.keys() if tree is None else tasks_begun(tree)
    days_begun = [day for day in days if any(task.id in begun for task in day.tasks)]
    outcomes = outcomes_by_task(tree, days_begun, console, args.again)
    table = Table("task", "", "what", "next", title="the solution" if tree is None else str(tree))
    done: set[str] = set()
    untested: set[str] = set()
    for day in days:
        table.add_section()
        for task in day.tasks:
            is_begun = task.id in begun
            mark, hint = state(outcomes.get(task.id, [])) if is_begun else (TO_WRITE, "")
            if mark == DONE:
                done.add(task.id)
            elif mark == METAL_UNTESTED:
                untested.add(task.id)
            table.add_row(
                task.id, mark, f"{'optional: ' if task.is_optional else ''}{task.title}", hint
            )
    console.print(table)
    for line in counts(days, done, untested):
        console.print(line)
    could_not_run = any(not one.test for found in outcomes.values() for one in found)
    return 1 if could_not_run else 0


def counts(days: Sequence[Day], done: Set[str], untested: Set[str] = frozenset()) -> list[str]:
    """Numbers of completed tasks (ids in `done`); optional ones on a second line.

    `untested` has the ids of tasks whose Metal kernels could not be tested.
    """
    lines = []
    for is_optional, what in ((False, "tasks"), (True, "optional tasks")):
        ids = {task.id for day in days for task in day.tasks if task.is_optional == is_optional}
        if ids:
            line = f"{len(ids & done)} of {len(ids)} {what} done"
            if ids & untested:
                line += f", {len(ids & untested)} more with untested Metal kernels"
            lines.append(line)
    return lines


DONE = "[green]done[/]"
METAL_UNTESTED = "[yellow]done, Metal untested[/]"
TO_WRITE = "[dim]to write[/]"


def state(outcomes: list[Outcome]) -> tuple[str, str]:
    """A task's state as shown in the table, and a hint about the first failure."""
    failed = [outcome for outcome in outcomes if outcome.passed is False]
    if not outcomes:
        return "[dim]no tests[/]", ""
    if not failed:
        skipped = [outcome for outcome in outcomes if outcome.passed is None]
        if not skipped:
            return DONE, ""
        mark = METAL_UNTESTED if is_done(outcomes) else "[yellow]skipped[/]"
        return mark, first_line(skipped[0].message).replace("[", "\\[")
    unwritten = next((outcome for outcome in failed if outcome.is_unwritten), None)
    if unwritten is not None:
        return TO_WRITE, ""
    if any(outcome.is_not_built for outcome in failed):
        return "[yellow]not built yet[/]", "`pdm run build-ext` builds your extension"
    hint = f"{len(failed)} of {len(outcomes)} tests fail: {first_line(failed[0].message)}"
    return "[red]fails[/]", hint.replace("[", "\\[")


if __name__ == "__main__":
    sys.exit(main())
