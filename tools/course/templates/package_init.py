"""Your tiny_llm. The modules in this folder are yours; all others are the solution's own.

The names are those of the solution: what its `__init__.py` exports is taken from your modules.
"""

from pathlib import Path

_SOLUTION = Path(__file__).resolve().parents[2] / "@SOLUTION@" / "src" / "tiny_llm"
__path__.append(str(_SOLUTION.resolve()))  # type: ignore[name-defined] # noqa: F821
_init = (_SOLUTION / "__init__.py").resolve()
exec(compile(_init.read_text(encoding="utf-8"), str(_init), "exec"))
