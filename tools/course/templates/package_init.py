"""Your tiny_llm. The modules in this folder are yours; all others are the solution's own.

The names are those of the solution: what its `__init__.py` exports is taken from your modules.
"""

from pathlib import Path

_init = (Path(__file__).resolve().parent / "@SOLUTION@").resolve()
__path__.append(str(_init.parent))  # type: ignore[name-defined] # noqa: F821
exec(compile(_init.read_text(encoding="utf-8"), str(_init), "exec"))
