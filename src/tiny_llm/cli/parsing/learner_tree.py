"""`--solution mine`: re-executes the command with the learner's tiny_llm package."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError

TREE_VARIABLE = "TINY_LLM_MINE"  # the learner's tree; by default `mine/` in the working directory


def find_learner_tree() -> Path | None:
    """Path of the learner's tree, or None if it does not exist."""
    tree = _tree_path()
    return tree if (tree / "site" / "sitecustomize.py").is_file() else None


def is_running_mine(tree: Path) -> bool:
    """Whether this process imported tiny_llm from that tree."""
    return sys.modules["tiny_llm"].__file__ == str(tree / "src" / "tiny_llm" / "__init__.py")


def exec_in_learner_tree(module: str, argv: Sequence[str] | None) -> None:
    """Replaces this process by one that imports the learner's tiny_llm; no-op in the latter.

    Args:
        module: module of the command, such as "tiny_llm.cli.main".
        argv: arguments; `sys.argv[1:]` if None.

    Raises:
        UserError: the learner's tree does not exist.
    """
    tree = find_learner_tree()
    if tree is None:
        raise UserError(
            f"--solution mine requires a learner's tree, but {_tree_path()} has none; "
            "`pdm run start-course` creates it."
        )
    if is_running_mine(tree):
        return
    paths = [str(tree / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), TREE_VARIABLE: str(tree)}
    command = [sys.executable, "-m", module, *(sys.argv[1:] if argv is None else argv)]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


def _tree_path() -> Path:
    """Configured path of the learner's tree."""
    return Path(os.environ.get(TREE_VARIABLE, "mine")).resolve()
