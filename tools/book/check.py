"""`pdm run book-check`: the book builds, its commands run, its tasks have tests, its spelling."""

import argparse
import subprocess
import sys

from . import BOOK, ROOT, BookError
from .build import build
from .commands import run_all
from .tasks import check_all


def check_spelling() -> None:
    """Raises the misspellings that codespell knows.

    Raises:
        BookError: there are some.
    """
    done = subprocess.run(
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
    if done.returncode != 0:
        raise BookError(done.stdout + done.stderr)


def main() -> int:
    """Runs every check; the first that fails ends it with exit status 1."""
    parser = argparse.ArgumentParser(prog="book-check", description=__doc__)
    parser.add_argument("--no-run", action="store_true", help="do not run the runnable commands")
    args = parser.parse_args()
    try:
        check_spelling()
        check_all()
        build()
        count = 0 if args.no_run else run_all()
    except BookError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"nothing is wrong with the book; {count} of its commands were run")
    return 0


if __name__ == "__main__":
    sys.exit(main())
