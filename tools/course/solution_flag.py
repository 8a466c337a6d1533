"""`--solution mine|ref`: selects the learner's source tree or the solution."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .markers import all_blocks
from .tasks import Day
from .tree import PACKAGE, ROOT, default_folder, display_path, environment, find_tree

SOLUTIONS = ("tiny_llm", "mine", "ref", "tiny_llm_ref")


def add_solution_argument(parser: argparse.ArgumentParser) -> None:
    """Adds `--solution` to a parser; `args.solution` defaults to None."""
    parser.add_argument(
        "--solution",
        choices=SOLUTIONS,
        help="tiny_llm (default): the learner's tree if it exists, else the solution; mine: the "
        "learner's tree; ref or tiny_llm_ref: the solution",
    )


def selected_tree(parser: argparse.ArgumentParser, solution: str | None) -> Path | None:
    """Returns the selected learner's source tree, or None for the solution.

    `solution` is the flag's value; None and tiny_llm prefer the learner's source tree if it exists.
    `parser` reports a missing source tree and exits.
    """
    tree = find_tree()
    if solution == "mine" and tree is None:
        parser.error(
            f"--solution mine: there is no learner's tree in {display_path(default_folder())}; "
            "`pdm run start-course` creates it"
        )
    return None if solution in ("ref", "tiny_llm_ref") else tree


def parse_with_tree(
    parser: argparse.ArgumentParser, argv: Sequence[str] | None = None
) -> tuple[argparse.Namespace, Path | None]:
    """Parses a command line with `--solution`; returns the arguments and the selected tree."""
    add_solution_argument(parser)
    args = parser.parse_args(argv)
    return args, selected_tree(parser, args.solution)


def restart_in_tree(
    tree: Path | None, module: str, argv: Sequence[str] | None = None, day: Day | None = None
) -> None:
    """Restarts with `python -m module` if another `tiny_llm` would be imported.

    `tree` is the learner's tree, or None for the solution; `argv` defaults to `sys.argv[1:]`. For a
    demo of `day`, the solution replaces the learner's files with unwritten tasks of other days,
    with a notice.
    """
    wanted = environment(tree)
    if wanted.get("PYTHONPATH") != os.environ.get("PYTHONPATH"):
        if tree is not None and day is not None:
            wanted["TINY_LLM_SKIP"] = os.pathsep.join(_unwritten_files(tree, day))
        command = [sys.executable, "-m", module, *(sys.argv[1:] if argv is None else argv)]
        os.execve(sys.executable, command, wanted)


def _unwritten_files(tree: Path, day: Day) -> list[str]:
    """Names of the learner's files with unwritten tasks, except those of `day`; prints a notice."""
    from tiny_llm.cli.parsing.command import replacement_notice, unwritten_files

    tasks = {task.id for task in day.tasks}
    own = {
        path.relative_to(ROOT / PACKAGE).as_posix()
        for path, block in all_blocks(ROOT / PACKAGE).values()
        if block.task in tasks
    }
    files = [name for name in unwritten_files(tree) if name not in own]
    if files:
        print(replacement_notice(files), file=sys.stderr)
    return files
