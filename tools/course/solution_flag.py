"""`--solution mine|ref`: tree that a command of the course works on."""

import argparse
from pathlib import Path

from .tree import default_folder, find_tree, shown

SOLUTIONS = ("mine", "ref", "tiny_llm")  # tiny_llm is an alias of ref, as in `main`


def add_solution_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the flag, with the default None."""
    parser.add_argument(
        "--solution",
        choices=SOLUTIONS,
        help="mine: the learner's tree; ref or tiny_llm: the solution",
    )


def selected_tree(parser: argparse.ArgumentParser, solution: str | None) -> Path | None:
    """The selected learner's tree, or None for the solution. Exits if it is missing.

    Args:
        parser: reports the error.
        solution: value of the flag; None selects the learner's tree if it exists.
    """
    tree = find_tree()
    if solution == "mine" and tree is None:
        parser.error(
            f"--solution mine requires a learner's tree, but {shown(default_folder())} has none; "
            "`pdm run start-course` creates it"
        )
    return None if solution in ("ref", "tiny_llm") else tree
