"""Import hook: `import tiny_llm` imports the learner's tree around this folder.

Python runs this file at startup if the folder is on PYTHONPATH, as set by `--solution mine`. The
installed tiny_llm has an import hook too, which takes precedence over sys.path: this hook is
inserted before it.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
FOLDERS = {"tiny_llm": TREE / "src", "tiny_llm_ext": TREE / "build" / "package"}


class LearnersTree:
    """Finds only tiny_llm and tiny_llm_ext, in the learner's tree."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        package, _, rest = fullname.partition(".")
        if package not in FOLDERS:
            return None
        spec = PathFinder.find_spec(fullname, path if rest else [str(FOLDERS[package])])
        if spec is None and not rest:  # do not fall back to the solution
            raise ModuleNotFoundError(f"{FOLDERS[package]} has no {fullname}", name=fullname)
        return spec


sys.meta_path.insert(0, LearnersTree)
