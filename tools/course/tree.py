"""Layout of the learner's source tree and its import mechanism.

    mine/
      README.md             for the learner
      src/tiny_llm/         the modules with tasks
      src/extensions/       the C++ extension without the solution's fast kernels
      site/                 makes Python import src/tiny_llm of mine/: see its sitecustomize.py
      build/                output of build-ext

Modules missing from the learner's source tree (commands, loading, the demo model) are imported from
the solution.
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
EXAMPLE = EXTENSION / "example"  # built by the tests of day 2.2, not by build-ext

# Environment variable: path of the learner's source tree; default: `mine` in the repository.
VARIABLE = "TINY_LLM_MINE"

# Files omitted from the learner's source tree, where operations run the learner's kernels: the fast
# kernels, which the book's chapter "Going to memory speed" discusses, and C++ tests.
SOLUTION_ONLY = (
    "src/flash_attention/fast/*",
    "src/paged_attention/fast/*",
    "src/quantized_matmul/fast/*",
    "tests/*",
)


def default_folder() -> Path:
    """Path of the learner's source tree, which may not exist."""
    return (ROOT / os.environ.get(VARIABLE, "mine")).resolve()


def display_path(path: Path) -> str:
    """Path for display: relative if below the current folder, else absolute."""
    here = Path.cwd()
    return os.path.relpath(path, here) if path.is_relative_to(here) else str(path)


def is_tree(folder: Path) -> bool:
    """Whether a folder is a learner's source tree."""
    return (folder / "site" / "sitecustomize.py").is_file()


def find_tree() -> Path | None:
    """Path of the learner's source tree; None if it does not exist."""
    return default_folder() if is_tree(default_folder()) else None


def environment(tree: Path | None) -> dict[str, str]:
    """This process's environment, with PYTHONPATH for `tree`; None: solution."""
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
    """Contents of a new learner's source tree in `folder`, by relative path."""
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
    """Import hooks for the learner's `modules`; all others are the solution's.

    `modules` are relative to `folder`, the root of the learner's source tree. The hooks contain the
    relative path to the solution.
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


def learner_file(path: Path) -> Path:
    """A file of the tested source tree: the learner's, or else the repository's."""
    tree = getattr(sys.modules.get("sitecustomize"), "TREE", None)
    return tree / path if tree is not None and (tree / path).exists() else ROOT / path


def _template(name: str, solution: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8").replace("@SOLUTION@", solution)
