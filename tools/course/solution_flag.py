"""`--solution mine|ref`: whose code a command of the course works on."""

import argparse
from pathlib import Path

from .tree import default_folder, find_tree, shown

SOLUTIONS = ("mine", "ref", "tiny_llm")  # tiny_llm is another name of ref, as in `main`


def add_solution_argument(parser: argparse.ArgumentParser) -> None:
    """Adds the flag; if it is not given, `args.solution` is None."""
    parser.add_argument(
        "--solution",
        choices=SOLUTIONS,
        help="mine: the learner's tree; ref or tiny_llm: the solution",
    )


def selected_tree(parser: argparse.ArgumentParser, solution: str | None) -> Path | None:
    """The learner's tree to work on, or None for the solution. Ends the command if there is none.

    Args:
        parser: says so.
        solution: what was asked for; None takes the learner's tree if there is one.
    """
    tree = find_tree()
    if solution == "mine" and tree is None:
        parser.error(
            f"--solution mine: there is no learner's tree in {shown(default_folder())}; "
            "`pdm run start-course` writes one"
        )
    return None if solution in ("ref", "tiny_llm") else tree
