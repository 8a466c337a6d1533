"""Fuses multiply-adds or not, per seed, where compilers have the choice.

With -ffp-contract=on clang emits `llvm.fmuladd` for a product plus an addend in one expression,
which may or may not be fused. Here each becomes both, and a call chooses (runtime/loose.cpp), per
place in the code, as a GPU's compiler does.
"""

import re

CALL = re.compile(
    r"(\s*)(%[\w.]+) = (?:tail |musttail |notail )?call ([^@]*?)@llvm\.fmuladd\.(\w+)\((.*?)\)"
    r"((?: #\d+)?(?:, ![\w.]+ !\d+)*)$"
)
# Tokens between `call` and the type: fast-math flags.
FLAGS = re.compile(r"^(?:(?:nnan|ninf|nsz|arcp|contract|afn|reassoc|fast|noundef) )*")


def choose_contraction(ir: str) -> str:
    """Replaces each multiply-add in LLVM text by a choice of fusion; see the module."""
    lines, types, place = [], {}, 0
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
        own = f"%fused.{place}"
        lines += [
            f"{indent}{own}.product = fmul {kind} {x}, {y}{end}",
            f"{indent}{own}.sum = fadd {kind} {own}.product, {z}{end}",
            f"{indent}{own}.once = call {kind} @llvm.fma.{suffix}({kind} {x}, {kind} {y}, "
            f"{kind} {z}){end}",
            f"{indent}{own}.chosen = call zeroext i1 @msl_contracts(i32 {place}){end}",
            f"{indent}{name} = select i1 {own}.chosen, {kind} {own}.once, {kind} {own}.sum{end}",
        ]
        place += 1
    declared = "\n".join(lines)
    for suffix, kind in types.items():
        if f"@llvm.fma.{suffix}(" not in ir:
            declared += f"\ndeclare {kind} @llvm.fma.{suffix}({kind}, {kind}, {kind})"
    return declared + "\ndeclare zeroext i1 @msl_contracts(i32) nounwind willreturn memory(none)\n"


def _split(operands: str) -> list[str]:
    """Splits at commas outside a vector's brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(operands):
        depth += (character in "<({[") - (character in ">)}]")
        if character == "," and depth == 0:
            parts.append(operands[start:i].strip())
            start = i + 1
    return [*parts, operands[start:].strip()]
