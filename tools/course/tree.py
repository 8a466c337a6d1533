"""The learner's tree: location, contents, and import path.

    mine/
      README.md             for the learner
      src/tiny_llm/         modules with tasks
      src/extensions/       the whole C++ extension, except the solution's fast kernels
      site/                 redirects `import tiny_llm` to this tree: see sitecustomize.py there
      build/                output of build-ext

Modules outside the learner's tree (commands, loading, the demo model) are the solution's, so no
module exists twice, and the learner edits the code that runs.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from .markers import find_blocks, marked_files
from .starter import starter_text

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = Path(__file__).resolve().parent / "templates"
PACKAGE = Path("src/tiny_llm")
EXTENSION = Path("src/extensions")

# Overrides the default, `mine` beside the solution.
VARIABLE = "TINY_LLM_MINE"

# Kernels that the course does not ask for, of operations that it does: in the learner's tree those
# run the learner's own. "Going to memory speed" reads them in the solution. And the tests of them.
SOLUTION_ONLY = (
    "src/flash_attention/fast/*",
    "src/paged_attention/fast/*",
    "src/quantized_matmul/fast/*",
    "tests/*",
)


def default_folder() -> Path:
    """Configured path of the learner's tree."""
    return (ROOT / os.environ.get(VARIABLE, "mine")).resolve()


def shown(path: Path) -> str:
    """A path for display: relative if below the working directory, else absolute."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


def is_tree(folder: Path) -> bool:
    """Whether a folder is a learner's tree."""
    return (folder / "site" / "sitecustomize.py").is_file()


def find_tree() -> Path | None:
    """Path of the learner's tree, or None if it does not exist."""
    return default_folder() if is_tree(default_folder()) else None


def environment(tree: Path | None) -> dict[str, str]:
    """Environment in which `tiny_llm` is a learner's tree's, or the solution's."""
    result = {**os.environ}
    paths = result.get("PYTHONPATH", "").split(os.pathsep)
    paths = [path for path in paths if path and not is_tree(Path(path).parent)]
    if tree is not None:
        result[VARIABLE] = str(tree)
        paths = [str(tree / "site"), *paths]
    result["PYTHONPATH"] = os.pathsep.join(paths)
    if not paths:
        del result["PYTHONPATH"]
    return result


def starter_files(folder: Path) -> dict[Path, str]:
    """Files of a new learner's tree: relative path -> contents.

    Args:
        folder: path of the tree, which stores its relative path to the solution.
    """
    files = {Path("README.md"): _template("README.md", os.path.relpath(ROOT, folder))}
    for path in marked_files(ROOT / PACKAGE):
        text = path.read_text(encoding="utf-8")
        if find_blocks(text, path.relative_to(ROOT)):
            relative = path.relative_to(ROOT)
            files[relative] = starter_text(text, relative)
    files |= import_files(folder, files)
    for path in sorted((ROOT / EXTENSION).rglob("*")):
        relative = path.relative_to(ROOT)
        inside = path.relative_to(ROOT / EXTENSION)
        if path.is_file() and "__pycache__" not in path.parts and not _is_solution_only(inside):
            files[relative] = starter_text(path.read_text(encoding="utf-8"), relative)
    return files


def import_files(folder: Path, modules: Iterable[Path]) -> dict[Path, str]:
    """Files that make Python import a folder's modules, and otherwise the solution's.

    Args:
        folder: path of the modules, which stores its relative path to the solution.
        modules: paths relative to the folder.
    """
    solution = os.path.relpath(ROOT, folder)
    files = {Path("site/sitecustomize.py"): _template("sitecustomize.py", solution)}
    packages = {PACKAGE, *(package for module in modules for package in module.parents)}
    for package in sorted(one for one in packages if PACKAGE in (one, *one.parents)):
        init = package / "__init__.py"
        files[init] = _template("package_init.py", os.path.relpath(ROOT / init, folder / package))
    return files


def _is_solution_only(path: Path) -> bool:
    return any(path.match(pattern) for pattern in SOLUTION_ONLY)


def learners_file(path: Path) -> Path:
    """A file of the solution, or the learner's version in tests of a learner's tree.

    Args:
        path: relative to the project's root.
    """
    tree = getattr(sys.modules.get("sitecustomize"), "TREE", None)
    return tree / path if tree is not None and (tree / path).exists() else ROOT / path


def _template(name: str, solution: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8").replace("@SOLUTION@", solution)
