"""`--solution mine`: re-executes a command with the learner's tiny_llm."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import UserError

TREE_VARIABLE = "TINY_LLM_MINE"  # learner's source tree; default `mine/` in the current directory
# Files to import from the reference solution instead of the learner's tree.
SKIP_VARIABLE = "TINY_LLM_SKIP"


def find_learner_tree() -> Path | None:
    tree = _tree_path()
    return tree if (tree / "site" / "sitecustomize.py").is_file() else None


def is_running_mine(tree: Path) -> bool:
    return sys.modules["tiny_llm"].__file__ == str(tree / "src" / "tiny_llm" / "__init__.py")


def unwritten_files(tree: Path) -> list[str]:
    """Files with unwritten tasks to replace, relative to the learner's package.

    Files that catch `TaskNotImplemented` run without their tasks. The reference's would call the
    learner's C++, whose tasks may be unwritten, too.
    """
    package = tree / "src" / "tiny_llm"
    found = []
    for path in sorted(package.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "raise TaskNotImplemented(" in text and "except TaskNotImplemented" not in text:
            found.append(path.relative_to(package).as_posix())
    return found


def replacement_notice(names: Sequence[str]) -> str:
    """Message about files that the reference replaces; counts more than three."""
    shown = ", ".join(names) if len(names) <= 3 else f"{len(names)} files, see `pdm run progress`"
    return f"solution: mine, with reference files for unwritten tasks: {shown}"


def exec_in_learner_tree(
    module: str, argv: Sequence[str] | None, skipped: Sequence[str] = ()
) -> None:
    """Re-executes the process with the learner's tiny_llm, unless already done.

    Args:
        module: the command's module, e.g. "tiny_llm.cli.main".
        skipped: files to import from the reference solution; see `unwritten_files`.
    """
    tree = find_learner_tree()
    if tree is None:
        raise UserError(
            f"--solution mine requires a learner's tree, but {_tree_path()} does not contain one; "
            "create it with `pdm run start-course`."
        )
    if is_running_mine(tree):
        return
    paths = [str(tree / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), TREE_VARIABLE: str(tree)}
    environment[SKIP_VARIABLE] = os.pathsep.join(skipped)
    command = [sys.executable, "-m", module, *(sys.argv[1:] if argv is None else argv)]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


def _tree_path() -> Path:
    return Path(os.environ.get(TREE_VARIABLE, "mine")).resolve()
