"""Counts multiplications: how many each basic block of the compiled kernels has.

clang's coverage instrumentation calls __sanitizer_cov_trace_pc_guard at the start of every basic
block, with the address of a number that is the block's own. The LLVM text says which block that is
and which instructions it has; the runtime adds a block's costs whenever it is entered
(runtime/watch_counts.cpp).
"""

import re

GUARD = re.compile(
    r"call void @__sanitizer_cov_trace_pc_guard\(ptr (?:inttoptr \(i64 add \(i64 ptrtoint "
    r"\(ptr )?@(\S+?)(?: to i64\), i64 (\d+)\) to ptr\))?\)"
)
GUARDS = re.compile(
    r"^@(\S+) = private global \[(\d+) x i32\] zeroinitializer, section", re.MULTILINE
)
FLOAT_MULTIPLY = re.compile(r"= (?:tail )?(?:call .*@llvm\.(?:fma|fmuladd)\.|fmul )")
INTEGER_MULTIPLY = re.compile(r"= mul ")
VECTOR = re.compile(r"<(\d+) x ")


def instrument(ir: str) -> str:
    """C source with the table of costs: for each array of guards, the costs of its blocks."""
    costs = {name: [[0, 0] for _ in range(int(count))] for name, count in GUARDS.findall(ir)}
    block: list[int] | None = None
    for line in ir.splitlines():
        guard = GUARD.search(line)
        if guard:
            block = costs[guard[1]][int(guard[2] or 0) // 4]
        elif block is not None and (" = mul " in line or "fmul " in line or "@llvm.fm" in line):
            lanes = VECTOR.search(line)
            width = int(lanes[1]) if lanes else 1
            if FLOAT_MULTIPLY.search(line):
                block[0] += width
            elif INTEGER_MULTIPLY.search(line):
                block[1] += width
        elif line.startswith("}"):
            block = None
    flat = [f"{{{a}, {b}}}" for blocks in costs.values() for a, b in blocks]
    # The linker joins the arrays of guards in the order of the file.
    return (
        "const unsigned msl_block_costs[][2] = {" + ", ".join([*flat, "{0, 0}"]) + "};\n"
        f"const unsigned msl_block_count = {len(flat)};\n"
    )
