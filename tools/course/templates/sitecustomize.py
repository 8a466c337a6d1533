"""Import hook: `import tiny_llm` imports this learner's source tree.

Python runs this file at startup if its folder is on PYTHONPATH, as set by `--solution mine`. The
installed tiny_llm may have an import hook too, which takes precedence over sys.path, so this hook
is inserted before it.
"""

import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
FOLDERS = {"tiny_llm": TREE / "src", "tiny_llm_ext": TREE / "build" / "package"}
# Learner's files for which the solution's are imported instead; see `serve --solution mine`.
SKIPPED = {
    str(TREE / "src" / "tiny_llm" / name)
    for name in os.environ.get("TINY_LLM_SKIP", "").split(os.pathsep)
}


class LearnersTree:
    """Import finder for tiny_llm and tiny_llm_ext in the learner's source tree."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        package, _, rest = fullname.partition(".")
        if package not in FOLDERS:
            return None
        spec = PathFinder.find_spec(fullname, path if rest else [str(FOLDERS[package])])
        if spec is None and not rest:  # unbuilt extension: no fallback to the solution's
            raise ModuleNotFoundError(f"{FOLDERS[package]} has no {fullname}", name=fullname)
        if spec is not None and spec.origin in SKIPPED and path is not None:
            return PathFinder.find_spec(fullname, path[1:])  # path[0] is the learner's folder
        return spec


sys.meta_path.insert(0, LearnersTree)
