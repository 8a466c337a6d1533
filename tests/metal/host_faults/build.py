"""Builds the extension with all faults, selected by TINY_LLM_SEEDED_FAULT."""

from pathlib import Path

from tests.metal.host_faults.faults import FAULTS, Fault
from tools.course.build import LESS_OPTIMIZED, build_tree
from tools.course.tree import EXTENSION, ROOT

TREE = ROOT / "build" / "host_faults"

HEADER = """// Selects the active fault; 0 is none.
#pragma once
#include <cstdlib>
inline bool is_active(int fault) {
    const char* number = std::getenv("TINY_LLM_SEEDED_FAULT");
    return number != nullptr && std::atoi(number) == fault;
}
"""


def build() -> Path:
    """Incrementally builds `tiny_llm_ext` with all faults; returns its folder."""
    target = TREE / EXTENSION
    for file in (ROOT / EXTENSION).rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            _write(target / file.relative_to(ROOT / EXTENSION), file.read_bytes())
    _write(target / "seeded_fault.h", HEADER.encode())
    for name in {fault.file for fault in FAULTS}:
        text = (ROOT / EXTENSION / name).read_text(encoding="utf-8")
        for number, fault in enumerate(FAULTS, start=1):
            if fault.file == name:
                text = _with_fault(text, number, fault)
        _write(target / name, f'#include "seeded_fault.h"\n{text}'.encode())
    output = build_tree(TREE, "-DTINY_LLM_UNITY=ON", *LESS_OPTIMIZED)
    if output is not None:
        raise RuntimeError(output)
    return TREE / "build" / "package"


def _with_fault(text: str, number: int, fault: Fault) -> str:
    if text.count(fault.right) != 1:
        raise RuntimeError(
            f"{fault.file}: expected {fault.right!r} once, found {text.count(fault.right)} times"
        )
    if fault.right.endswith(";"):
        selected = f"if (is_active({number})) {{ {fault.wrong} }} else {{ {fault.right} }}"
    elif fault.right.startswith("."):  # initializes a struct's field
        field, right = fault.right.split(" = ", 1)
        wrong = fault.wrong.split(" = ", 1)[1]
        selected = f"{field} = (is_active({number}) ? ({wrong}) : ({right}))"
    else:
        selected = f"(is_active({number}) ? ({fault.wrong}) : ({fault.right}))"
    return text.replace(fault.right, selected)


def _write(file: Path, content: bytes) -> None:
    """Writes a file only if its content has changed, to avoid recompiling it."""
    if file.exists() and file.read_bytes() == content:
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
