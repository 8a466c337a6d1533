"""`python -m tools.architecture`: draws the picture; `--check` says whether all is in order."""

import argparse
import sys
from pathlib import Path

from .drawing import draw
from .imports import read_package
from .rules import PACKAGE, problems, room_imports

PICTURE = PACKAGE.parents[1] / "book" / "assets" / "architecture.svg"


def picture() -> str:
    """The picture of the package as it is."""
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    return draw(room_imports(read_package(PACKAGE)), folders)


def check(drawn: Path = PICTURE) -> list[str]:
    """What is not in order: a sentence for each broken rule, and one for a picture of the past."""
    found = problems(read_package(PACKAGE))
    if found:
        return found
    if not drawn.exists() or drawn.read_text(encoding="utf-8") != picture():
        return [f"{drawn.name} shows other imports than the package has: `pdm run architecture`."]
    return []


def main(argv: list[str] | None = None) -> int:
    """Runs the command; 1 if something is not in order."""
    parser = argparse.ArgumentParser(prog="architecture", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    if not args.check and not problems(read_package(PACKAGE)):
        PICTURE.write_text(picture(), encoding="utf-8")
    found = check()
    for sentence in found:
        print(f"architecture: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
