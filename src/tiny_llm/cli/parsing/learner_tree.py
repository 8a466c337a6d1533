"""`--solution mine`: the same command once more, with the learner's tiny_llm for this one."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError

TREE_VARIABLE = "TINY_LLM_MINE"  # the folder of the learner's tree; `mine`, where the command runs


def find_learner_tree() -> Path | None:
    """The learner's tree, or None if there is none."""
    tree = _folder()
    return tree if (tree / "site" / "sitecustomize.py").is_file() else None


def is_running_mine(tree: Path) -> bool:
    """Whether this process has imported the tiny_llm of that tree."""
    return sys.modules["tiny_llm"].__file__ == str(tree / "src" / "tiny_llm" / "__init__.py")


def exec_in_learner_tree(module: str, argv: Sequence[str] | None) -> None:
    """Replaces this process by one that imports the learner's tiny_llm; returns if it is that one.

    Args:
        module: of the command, such as "tiny_llm.cli.main".
        argv: its arguments; those of the process if None.

    Raises:
        UserError: there is no learner's tree.
    """
    tree = find_learner_tree()
    if tree is None:
        raise UserError(
            f"--solution mine runs a learner's tree, and there is none in {_folder()}; "
            "`pdm run start-course` writes one."
        )
    if is_running_mine(tree):
        return
    paths = [str(tree / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), TREE_VARIABLE: str(tree)}
    command = [sys.executable, "-m", module, *(sys.argv[1:] if argv is None else argv)]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


def _folder() -> Path:
    """Where the learner's tree is, or would be."""
    return Path(os.environ.get(TREE_VARIABLE, "mine")).resolve()
