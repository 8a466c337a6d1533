"""Makes `import tiny_llm` mean the learner's tree that this folder belongs to.

Python runs this file before any other if the folder is on PYTHONPATH, which is what
`--solution mine` does. The installed tiny_llm is found by an import hook, so a path alone would not
come before it: this is another hook, in front of it.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
FOLDERS = {"tiny_llm": TREE / "src", "tiny_llm_ext": TREE / "build" / "package"}


class LearnersTree:
    """Finds tiny_llm and tiny_llm_ext in the learner's tree, and nothing else."""

    @staticmethod
    def find_spec(
        fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        package, _, rest = fullname.partition(".")
        if package not in FOLDERS:
            return None
        spec = PathFinder.find_spec(fullname, path if rest else [str(FOLDERS[package])])
        if spec is None and not rest:  # or the solution's would be found instead
            raise ModuleNotFoundError(f"{FOLDERS[package]} has no {fullname}", name=fullname)
        return spec


sys.meta_path.insert(0, LearnersTree)
