"""`python -m tools.architecture`: writes the import diagram and module tree."""

import argparse
import sys
from pathlib import Path

from .asserts import impure_asserts
from .diagram import draw
from .imports import read_package
from .rules import PACKAGE, component_imports, problems
from .tree import PAGE, page, unordered

DIAGRAM = PACKAGE.parents[1] / "book" / "assets" / "architecture.svg"


def diagram() -> str:
    """Import diagram of `tiny_llm`, as SVG."""
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    return draw(component_imports(read_package(PACKAGE)), folders)


def check(drawn: Path = DIAGRAM) -> list[str]:
    """Checks rules, asserts, module tree and diagram; one sentence per violation."""
    errors = problems(read_package(PACKAGE)) + unordered(PACKAGE) + impure_asserts(PACKAGE)
    if errors:
        return errors
    if PAGE.read_text(encoding="utf-8") != page(PAGE.read_text(encoding="utf-8")):
        return [f"the tree in {PAGE.name} is outdated; run `pdm run architecture`."]
    if not drawn.exists() or drawn.read_text(encoding="utf-8") != diagram():
        return [f"{drawn.name} is outdated; run `pdm run architecture`."]
    return []


def main(argv: list[str] | None = None) -> int:
    """Runs the command. Exit status: 0, or 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="architecture", description=__doc__)
    parser.add_argument("--check", action="store_true", help="check without writing")
    args = parser.parse_args(argv)
    if not args.check and not problems(read_package(PACKAGE)) and not unordered(PACKAGE):
        DIAGRAM.write_text(diagram(), encoding="utf-8")
        PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    errors = check()
    for sentence in errors:
        print(f"architecture: {sentence}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
