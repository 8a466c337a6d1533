"""Counts multiplications: every basic block that has some says so when it is entered.

clang's coverage instrumentation puts a call at the start of each basic block of the LLVM text. Here
that call becomes one with the block's number of multiplications (runtime/watch_counts.cpp adds them
up), or disappears where there are none. A multiplication counts whether an addition follows or not:
a GPU fuses the two.
"""

import re

GUARD = re.compile(r"call void @__sanitizer_cov_trace_pc_guard\(.*\)(?= #\d+|, !dbg|$)")
FLOAT = re.compile(r" = (?:tail |musttail |notail )?(?:fmul |call [^(]*@llvm\.(?:fma|fmuladd)\.)")
INTEGER = re.compile(r" = mul ")
VECTOR = re.compile(r"<(\d+) x ")


def instrument(ir: str) -> str:
    """The LLVM text with calls that count; see the module."""
    lines = ir.splitlines()
    guard = -1  # the line of the current block's call
    floats = integers = 0

    def close() -> None:
        if guard >= 0:
            call = f"call void @msl_count_block(i32 {floats}, i32 {integers})"
            lines[guard] = GUARD.sub(call, lines[guard]) if floats or integers else ""

    for i, line in enumerate(lines):
        if GUARD.search(line):
            close()
            guard, floats, integers = i, 0, 0
        elif line.startswith("}"):
            close()
            guard = -1
        elif FLOAT.search(line):
            floats += _width(line)
        elif INTEGER.search(line):
            integers += _width(line)
    return "\n".join([*lines, "declare void @msl_count_block(i32, i32)", ""])


def _width(line: str) -> int:
    """How many operations an instruction is: a vector's components."""
    vector = VECTOR.search(line)
    return int(vector[1]) if vector else 1
