"""`pdm run test`: quick tests, all tests, or the tests of a course day.

    pdm run test                            quick tests, on up to four cores, in a few minutes
    pdm run test --all                      all tests
    pdm run test --week 1 --day 3           one day
    pdm run test --week 1 --day 3 -- -k task_2
    pdm run test tests/ops/test_values.py   one file

Quick tests are those not marked `slow` (each of the course's days and wrong solutions, comparisons
with `transformers`), `thorough` (more parameter combinations) or `other_isa` (instruction sets
between plain C++ and this machine's best): see tests/quick.py. --rest runs only the marked tests;
--shares 6, as in CI, runs a sixth of these, a different one at each commit. Files, -k and -m select
from all tests. `-n 0` runs tests in one process.

If a learner's source tree exists (`pdm run start-course` creates it), the tests of a week or a day
run on it, without slow tests; otherwise on the solution. --solution mine or ref overrides this. All
other flags are passed to pytest, with or without a preceding `--`.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tools.course.build import STALE, is_stale, num_cores, require_pytest
from tools.course.runner import crash_message
from tools.course.solution_flag import add_solution_argument, selected_tree
from tools.course.tasks import DAYS, day_of, day_with_task
from tools.course.tree import ROOT, display_path, environment

# Marker expressions of the quick run and of --rest.
QUICK = "not (slow or thorough or other_isa)"
REST = "slow or thorough or other_isa"
# Pytest options of a week or a day: short reports of failures, one line per unwritten task and
# reason for skipping.
BRIEF_REPORT = ("-p", "tools.course.pytest_summary", "--tb=short", "--no-header", "-rN")


def main() -> int:
    """Runs pytest on the selected tests."""
    parser = argparse.ArgumentParser(
        prog="test",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--week", type=int, metavar="N")
    parser.add_argument("--day", type=int, metavar="M")
    extent = parser.add_mutually_exclusive_group()
    extent.add_argument(
        "--all", action="store_true", help="include the tests omitted by the quick run"
    )
    extent.add_argument(
        "--rest", action="store_true", help="only the tests omitted by the quick run"
    )
    add_solution_argument(parser)
    args, rest = parser.parse_known_args()
    require_pytest("test")
    rest = [argument for argument in rest if argument != "--"]
    if args.day is not None and args.week is None:
        parser.error("--day requires --week")
    # Without --week, the tests check the reference solution by default.
    tree = selected_tree(parser, args.solution or ("ref" if args.week is None else None))
    if args.week is not None:
        try:
            rest = [*tests_of(args.week, args.day, tasks_in(rest)), *rest]
        except LookupError as error:
            parser.error(str(error))
        if tree is not None:
            print(f"testing your code in {display_path(tree)}", flush=True)
            if is_stale(tree):
                print(STALE, flush=True)
            # Slow tests would take minutes on a learner's kernels, which are plain loops.
            if not args.all and not has_flag(rest, "-m"):
                rest += ["-m", "not slow"]
        # Loading pytest's plugins would take as long as running the tests.
        if not has_flag(rest, "-n", "--dist", "-p"):
            rest = ["--disable-plugin-autoload", *rest]
        rest = [*BRIEF_REPORT, *rest]  # flags in `rest` take precedence
    os.chdir(ROOT)
    if args.week is None and not any(is_test_path(argument) for argument in rest):
        if not args.all and not has_flag(rest, "-m", "-k"):
            rest = ["-m", REST if args.rest else QUICK, *rest]
        # Tests of a file may depend on one another, so each file stays on one worker. xdist must
        # not reorder the files, as tests/quick.py puts the longest first.
        workers = ["-n", str(min(4, num_cores())), "--dist", "loadfile", "--no-loadscope-reorder"]
        rest = [*workers, *rest]
    if tree is None or args.week is None:
        os.execve(sys.executable, [sys.executable, "-m", "pytest", *rest], environment(tree))
    return run_learners_tests(tree, rest)


def run_learners_tests(tree: Path, arguments: list[str]) -> int:
    """Runs pytest in a child process, and names the test that crashed it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        command = [sys.executable, "-m", "pytest", "-p", "tools.course.pytest_json", *arguments]
        child = subprocess.Popen(command, env={**environment(tree), "TINY_LLM_REPORT": str(report)})
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest handles Ctrl-C
        status = child.wait()
        signal.signal(signal.SIGINT, handler)
        crash = crash_message(status, report)
    if crash is not None:
        print(crash, flush=True)
    return status if status >= 0 else 128 - status


def tests_of(week: int, day: int | None, tasks: Sequence[int]) -> list[str]:
    """Test files of a week or a day; raises `LookupError` if there are none.

    `tasks` are the numbers in -k. Days that form a pair share task numbers (see `Day`), so a task
    may belong to the other day.
    """
    if day is not None:
        requested = day_of(week, day)
        days = dict.fromkeys(day_with_task(requested, task) for task in tasks) or {requested: None}
        for other in days:
            if other is not requested:
                print(f"these tasks belong to {other.name}: {other.title}", flush=True)
        files = [chapter.test_file for chapter in days]
    else:
        files = [chapter.test_file for chapter in DAYS if chapter.week == week]
    files = [file for file in files if Path(ROOT, file).exists()]
    if not files:
        what = f"week {week}" if day is None else f"week {week}, day {day}"
        raise LookupError(f"{what} has no tests")
    return files


def tasks_in(arguments: list[str]) -> list[int]:
    """Task numbers in the -k flag: 1 and 3 for `-k "task_1 or task_3"`."""
    flags = [n for n, argument in enumerate(arguments) if argument.startswith("-k")]
    named = " ".join(" ".join(arguments[n : n + 2]) for n in flags)
    return [int(number) for number in re.findall(r"task_(\d+)", named)]


def is_test_path(argument: str) -> bool:
    """Whether an argument is a file, folder or test.

    Selected tests run without xdist: a few tests take less time than starting workers.
    """
    return Path(ROOT, argument.partition("::")[0]).exists()


def has_flag(arguments: list[str], *flags: str) -> bool:
    """Whether a pytest flag was given, as `--flag value` or `--flag=value`."""
    return any(argument.startswith(flags) for argument in arguments)


if __name__ == "__main__":
    sys.exit(main())
