"""`pdm run test`: all tests, or those of one day of the course.

    pdm run test
    pdm run test --week 1 --day 3
    pdm run test --week 1 --day 3 -- -k task_2

All other flags go to pytest, with or without `--` in front.
"""

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# A chapter of two days answers to either number: (week, second day) -> first day.
SECOND_DAYS = {(2, 3): 2, (2, 5): 4, (2, 7): 6}


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
    args, rest = parser.parse_known_args()
    rest = [argument for argument in rest if argument != "--"]
    if args.day is not None and args.week is None:
        parser.error("--day needs --week")
    target = tests_of(args.week, args.day)
    if not target.exists():
        known = ", ".join(known_days())
        parser.error(f"there are no tests at {target.relative_to(ROOT)}; there are: {known}")
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", str(target.relative_to(ROOT)), *rest])


def tests_of(week: int | None, day: int | None) -> Path:
    """Where the tests of a week, of a day, or all tests are."""
    tests = ROOT / "tests"
    if week is None:
        return tests
    if day is None:
        return tests / f"week_{week}"
    return tests / f"week_{week}" / f"test_day_{SECOND_DAYS.get((week, day), day)}.py"


def known_days() -> list[str]:
    """The days that have tests, as `--week N --day M` spells them."""
    files = sorted((ROOT / "tests").glob("week_*/test_day_*.py"))
    return [f"--week {file.parent.name[5:]} --day {file.stem[9:]}" for file in files]


if __name__ == "__main__":
    sys.exit(main())
