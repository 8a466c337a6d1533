"""`pdm run test`: all tests, or those of one day of the course.

    pdm run test
    pdm run test --week 1 --day 3
    pdm run test --week 1 --day 3 -- -k task_2

Without --week all of the project's tests run, on up to four cores (`-n 0`: in one process), or
those that are named. Those of a week or a day run on the learner's tree if there is one (`pdm run
start-course` writes it), without the slow ones, and otherwise on the solution; --solution mine or
ref chooses. All other flags go to pytest, with or without `--` in front.
"""

import argparse
import os
import sys
from pathlib import Path

from tools.course.build import STALE, is_stale
from tools.course.choice import add_solution_argument, chosen_tree
from tools.course.tasks import DAYS, day_of
from tools.course.tree import ROOT, environment, shown


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
    add_solution_argument(parser)
    args, rest = parser.parse_known_args()
    rest = [argument for argument in rest if argument != "--"]
    if args.day is not None and args.week is None:
        parser.error("--day needs --week")
    # Without a week they are the project's tests, which check the solution.
    tree = chosen_tree(parser, args.solution or ("ref" if args.week is None else None))
    if args.week is not None:
        try:
            rest = [*tests_of(args.week, args.day), *rest]
        except LookupError as error:
            parser.error(str(error))
        if tree is not None:
            print(f"testing your code in {shown(tree)}", flush=True)
            if is_stale(tree):
                print(STALE, flush=True)
            if "-m" not in rest:  # whole answers, which take minutes in plain loops
                rest += ["-m", "not slow"]
    os.chdir(ROOT)
    if args.week is None and not any(names_tests(argument) for argument in rest):
        # A file's tests may need one another. The long files come early: they keep their order.
        workers = ["-n", str(min(4, num_cores())), "--dist", "loadfile", "--no-loadscope-reorder"]
        rest = [*workers, *rest]
    command = [sys.executable, "-m", "pytest", *rest]
    os.execve(sys.executable, command, environment(tree))


def tests_of(week: int, day: int | None) -> list[str]:
    """The files of a week's or a day's tests.

    Raises:
        LookupError: there are none.
    """
    if day is not None:
        files = [day_of(week, day).test_file]
    else:
        files = [chapter.test_file for chapter in DAYS if chapter.week == week]
    files = [file for file in files if Path(ROOT, file).exists()]
    if not files:
        what = f"week {week}" if day is None else f"week {week}, day {day}"
        raise LookupError(f"there are no tests of {what}")
    return files


def names_tests(argument: str) -> bool:
    """Whether an argument is a file, a folder or one test: few begin sooner in one process."""
    return Path(ROOT, argument.partition("::")[0]).exists()


def num_cores() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    sys.exit(main())
