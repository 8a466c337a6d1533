"""`pdm run test`: a quick run over everything, all tests, or those of one day of the course.

    pdm run test                            every layer, on up to four cores, in a few minutes
    pdm run test --all                      all tests, as CI runs them
    pdm run test --week 1 --day 3           one day's
    pdm run test --week 1 --day 3 -- -k task_2
    pdm run test tests/ops/test_matmul.py   all of a file's

The quick run leaves out what is marked `slow` (long tests: each of the course's days and wrong
solutions, `transformers` beside ours), `thorough` (more combinations of values that other cases
have) and `other_isa` (instruction sets between plain C++ and this machine's best): see
tests/quick.py. --rest runs only those. Files, -k and -m choose from all tests. `-n 0` keeps them in
one process.

The tests of a week or a day run on the learner's tree if there is one (`pdm run start-course`
writes it), without the slow ones, and otherwise on the solution; --solution mine or ref chooses.
All other flags go to pytest, with or without `--` in front.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.course.build import STALE, is_stale, num_cores
from tools.course.solution_flag import add_solution_argument, selected_tree
from tools.course.tasks import DAYS, day_of, day_with_task
from tools.course.tree import ROOT, environment, shown

# What `pdm run test` runs.
QUICK = "not (slow or thorough or other_isa)"
REST = "slow or thorough or other_isa"
# A learner's failures: what was compared, and the line; of an unwritten task, one line.
BRIEF = ("-p", "tools.course.pytest_summary", "--tb=short", "--no-header", "-rN")


def main() -> int:
    """Replaces this process by pytest on the chosen tests."""
    parser = argparse.ArgumentParser(
        prog="test",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--week", type=int, metavar="N")
    parser.add_argument("--day", type=int, metavar="M")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument("--all", action="store_true", help="what the quick run leaves out too")
    extent.add_argument("--rest", action="store_true", help="only what the quick run leaves out")
    add_solution_argument(parser)
    args, rest = parser.parse_known_args()
    rest = [argument for argument in rest if argument != "--"]
    if args.day is not None and args.week is None:
        parser.error("--day needs --week")
    # Without a week they are the project's tests, which check the solution.
    tree = selected_tree(parser, args.solution or ("ref" if args.week is None else None))
    if args.week is not None:
        try:
            rest = [*tests_of(args.week, args.day, tasks_in(rest)), *rest]
        except LookupError as error:
            parser.error(str(error))
        if tree is not None:
            print(f"testing your code in {shown(tree)}", flush=True)
            if is_stale(tree):
                print(STALE, flush=True)
            if not args.all and not has_flag(rest, "-m"):  # plain loops take minutes for answers
                rest += ["-m", "not slow"]
        if not has_flag(rest, "-n", "--dist", "-p"):  # loading plugins takes as long as the tests
            rest = ["--disable-plugin-autoload", *rest]
        if tree is not None:
            rest = [*BRIEF, *rest]  # pytest takes the last of a flag
    os.chdir(ROOT)
    if args.week is None and not any(names_tests(argument) for argument in rest):
        if not args.all and not has_flag(rest, "-m", "-k"):
            rest = ["-m", REST if args.rest else QUICK, *rest]
        # A file's tests may need one another. The long files come first: they keep their order.
        workers = ["-n", str(min(4, num_cores())), "--dist", "loadfile", "--no-loadscope-reorder"]
        rest = [*workers, *rest]
    command = [sys.executable, "-m", "pytest", *rest]
    os.execve(sys.executable, command, environment(tree))


def tests_of(week: int, day: int | None, tasks: Sequence[int]) -> list[str]:
    """The files of a week's or a day's tests.

    Args:
        week: N.
        day: M, or None for the whole week.
        tasks: the numbers of the tasks that -k names; some may be of the other day of a pair.

    Raises:
        LookupError: there are none.
    """
    if day is not None:
        asked = day_of(week, day)
        days = dict.fromkeys(day_with_task(asked, task) for task in tasks) or {asked: None}
        for other in days:
            if other is not asked:
                print(f"these tasks are of {other.name}: {other.title}", flush=True)
        files = [chapter.test_file for chapter in days]
    else:
        files = [chapter.test_file for chapter in DAYS if chapter.week == week]
    files = [file for file in files if Path(ROOT, file).exists()]
    if not files:
        what = f"week {week}" if day is None else f"week {week}, day {day}"
        raise LookupError(f"there are no tests of {what}")
    return files


def tasks_in(arguments: list[str]) -> list[int]:
    """The numbers of the tasks that -k names: of `-k "task_1 or task_3"`, 1 and 3."""
    flags = [n for n, argument in enumerate(arguments) if argument.startswith("-k")]
    named = " ".join(" ".join(arguments[n : n + 2]) for n in flags)
    return [int(number) for number in re.findall(r"task_(\d+)", named)]


def names_tests(argument: str) -> bool:
    """Whether an argument is a file, a folder or one test: few begin sooner in one process."""
    return Path(ROOT, argument.partition("::")[0]).exists()


def has_flag(arguments: list[str], *flags: str) -> bool:
    """Whether one of pytest's flags was given, with its value behind it or in it."""
    return any(argument.startswith(flags) for argument in arguments)


if __name__ == "__main__":
    sys.exit(main())
