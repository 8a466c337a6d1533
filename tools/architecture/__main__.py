"""`python -m tools.architecture`: writes the import diagram and the tree; `--check` only checks."""

import argparse
import sys
from pathlib import Path

from .diagram import draw
from .imports import read_package
from .rules import PACKAGE, component_imports, problems
from .tree import PAGE, page, unordered

DIAGRAM = PACKAGE.parents[1] / "book" / "assets" / "architecture.svg"


def diagram() -> str:
    """The picture of the package as it is."""
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    return draw(component_imports(read_package(PACKAGE)), folders)


def check(drawn: Path = DIAGRAM) -> list[str]:
    """One sentence per broken rule, outdated diagram or outdated tree."""
    found = problems(read_package(PACKAGE)) + unordered(PACKAGE)
    if found:
        return found
    if PAGE.read_text(encoding="utf-8") != page(PAGE.read_text(encoding="utf-8")):
        return [f"the tree in {PAGE.name} is outdated: `pdm run architecture`."]
    if not drawn.exists() or drawn.read_text(encoding="utf-8") != diagram():
        return [f"{drawn.name} shows other imports than the package has: `pdm run architecture`."]
    return []


def main(argv: list[str] | None = None) -> int:
    """Runs the command; 1 if something is not in order."""
    parser = argparse.ArgumentParser(prog="architecture", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    args = parser.parse_args(argv)
    if not args.check and not problems(read_package(PACKAGE)) and not unordered(PACKAGE):
        DIAGRAM.write_text(diagram(), encoding="utf-8")
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    found = check()
    for sentence in found:
        print(f"architecture: {sentence}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
