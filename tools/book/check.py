"""`pdm run book-check`: checks build, links, commands, tasks and spelling."""

import argparse
import subprocess
import sys

from . import BOOK, ROOT, BookError
from .build import build
from .commands import run_all
from .tasks import check_all


def check_spelling() -> None:
    """Runs codespell; raises `BookError` for misspellings."""
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "codespell_lib",
            "--ignore-words",
            str(BOOK / "words.txt"),
            str(BOOK / "pages"),
            str(BOOK / "diagrams"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if result.returncode != 0:
        raise BookError(result.stdout + result.stderr)


def main() -> int:
    """Runs every check. Exit status: 0, or 1 at the first failure."""
    parser = argparse.ArgumentParser(prog="book-check", description=__doc__)
    parser.add_argument("--no-run", action="store_true", help="skip the runnable commands")
    args = parser.parse_args()
    try:
        check_spelling()
        check_all()
        build()
        count = 0 if args.no_run else run_all()
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"the book is correct; {count} of its commands ran")
    return 0


if __name__ == "__main__":
    sys.exit(main())
