"""Counts operations: each basic block reports its operations when entered.

clang's coverage instrumentation inserts a call at the start of each basic block of the LLVM IR.
This module replaces the call with one that passes the block's operation counts (summed by
runtime/watch_counts.cpp), or removes it if all are zero. A multiplication counts the same with or
without a following addition, because a GPU fuses the two. Loads and stores are counted by
runtime/access.cpp.
"""

import re

GUARD = re.compile(r"call void @__sanitizer_cov_trace_pc_guard\(.*\)(?= #\d+|, !dbg|$)")
VECTOR = re.compile(r"<(\d+) x ")
INTEGERS = r"(?:\w+ )*?(?:<\d+ x )?i(?:8|16|32|64)\b"

# LLVM instructions of each kind of operation. Logical operations on i1 and integer conversions are
# not counted. A division or remainder by a power of two counts as one other integer operation.
MULTIPLY_ADD = re.compile(
    r" = (?:tail |musttail |notail )?(?:fmul |call [^(]*@llvm\.(?:fma|fmuladd)\.)"
)
INTEGER_MULTIPLY = re.compile(r" = mul ")
DIVISION = re.compile(rf" = (?:[us]div|[us]rem) {INTEGERS} [^,]+, (?P<by>\S+)")
INTEGER = re.compile(
    rf" = (?:(?:add|sub|shl|lshr|ashr|and|or|xor) {INTEGERS}|icmp "
    r"|(?:tail )?call [^(]*@llvm\.[su](?:min|max)\.)"
)
# Computing the address of an element at a variable index counts as one addition.
ADDRESS = re.compile(r" = getelementptr .*, i(?:32|64) %")
CONVERSION = re.compile(r" = (?:[us]itofp|fpto[us]i|fpext|fptrunc) ")
KINDS = ("multiply_adds", "integer_multiplies", "divisions", "integers", "conversions")


def instrument(ir: str) -> str:
    """Inserts counting calls into LLVM IR; see the module docstring."""
    lines = ir.splitlines()
    guard = -1  # line of the current block's coverage call; -1 outside functions
    numbers = dict.fromkeys(KINDS, 0)

    def end_block() -> None:
        if guard >= 0:
            arguments = ", ".join(f"i32 {number}" for number in numbers.values())
            call = f"call void @msl_count_block({arguments})"
            lines[guard] = GUARD.sub(call, lines[guard]) if any(numbers.values()) else ""

    for i, line in enumerate(lines):
        if GUARD.search(line):
            end_block()
            guard, numbers = i, dict.fromkeys(KINDS, 0)
        elif line.startswith("}"):
            end_block()
            guard = -1
        elif kind := _kind(line):
            numbers[kind] += _width(line)
    declaration = f"declare void @msl_count_block({', '.join(['i32'] * len(KINDS))})"
    return "\n".join([*lines, declaration, ""])


def _kind(line: str) -> str:
    """Kind of an instruction, an entry of KINDS; empty if it is not counted."""
    if MULTIPLY_ADD.search(line):
        return "multiply_adds"
    if INTEGER_MULTIPLY.search(line):
        return "integer_multiplies"
    if division := DIVISION.search(line):
        by = division["by"].rstrip(",")
        power = by.isdigit() and int(by).bit_count() == 1
        return "integers" if power else "divisions"
    if INTEGER.search(line) or ADDRESS.search(line):
        return "integers"
    return "conversions" if CONVERSION.search(line) else ""


def _width(line: str) -> int:
    """Number of operations of an instruction: its vector width, or 1 for scalars."""
    vector = VECTOR.search(line)
    return int(vector[1]) if vector else 1
