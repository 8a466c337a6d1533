"""Randomly fuses multiply-adds, per seed, where compilers may choose.

With -ffp-contract=on clang emits `llvm.fmuladd`, which may be fused or not, for a multiplication
and an addition in one expression. This module emits the fused and the unfused
variant, and a call to runtime/loose.cpp that selects one of them per code location.
"""

import re

CALL = re.compile(
    r"(\s*)(%[\w.]+) = (?:tail |musttail |notail )?call ([^@]*?)@llvm\.fmuladd\.(\w+)\((.*?)\)"
    r"((?: #\d+)?(?:, ![\w.]+ !\d+)*)$"
)
# Tokens between `call` and the type: fast-math flags and `noundef`.
FLAGS = re.compile(r"^(?:(?:nnan|ninf|nsz|arcp|contract|afn|reassoc|fast|noundef) )*")


def choose_contraction(ir: str) -> str:
    """Replaces each `llvm.fmuladd` in LLVM IR with a choice of fusion; see the module docstring."""
    lines, types, location = [], {}, 0
    for line in ir.splitlines():
        match = CALL.match(line)
        if match is None:
            lines.append(line)
            continue
        indent, name, before, suffix, operands, after = match.groups()
        kind = FLAGS.sub("", before).strip()
        x, y, z = (operand.removeprefix(kind).strip() for operand in _split(operands))
        types[suffix] = kind
        debug = re.search(r", !dbg !\d+", after)
        end = debug[0] if debug else ""
        temp = f"%fused.{location}"
        lines += [
            f"{indent}{temp}.product = fmul {kind} {x}, {y}{end}",
            f"{indent}{temp}.sum = fadd {kind} {temp}.product, {z}{end}",
            f"{indent}{temp}.once = call {kind} @llvm.fma.{suffix}({kind} {x}, {kind} {y}, "
            f"{kind} {z}){end}",
            f"{indent}{temp}.chosen = call zeroext i1 @msl_contracts(i32 {location}){end}",
            f"{indent}{name} = select i1 {temp}.chosen, {kind} {temp}.once, {kind} {temp}.sum{end}",
        ]
        location += 1
    text = "\n".join(lines)
    for suffix, kind in types.items():
        if f"@llvm.fma.{suffix}(" not in ir:
            text += f"\ndeclare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})"
    return text + "\ndeclare zeroext i1 @msl_contracts(i32) nounwind willreturn memory(none)\n"


def _split(operands: str) -> list[str]:
    """Splits at commas outside a vector's brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(operands):
        depth += (character in "<({[") - (character in ">)}]")
        if character == "," and depth == 0:
            parts.append(operands[start:i].strip())
            start = i + 1
    return [*parts, operands[start:].strip()]
