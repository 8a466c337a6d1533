"""Addition and subtraction up to 100, times tables up to 12.

The reasoning computes digit by digit. In addition to the held-out wordings, one operand pair in 20
never occurs in training.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from .example import Example, chat
from .paraphrase import phrase

if TYPE_CHECKING:
    import random

HELD_OUT_PAIRS = 20  # one operand pair in 20 is held out

COMMON = (
    "What is {a} {op} {b}?",
    "{a} {op} {b} = ?",
    "Calculate {a} {op} {b}.",
    "Compute {a} {op} {b}.",
    "How much is {a} {op} {b}?",
    "What does {a} {op} {b} make?",
    "What is the result of {a} {op} {b}?",
    "{a} {op} {b}",
    "What do you get for {a} {op} {b}?",
    "Tell me what {a} {op} {b} is.",
    "How much does {a} {op} {b} make?",
    "{a} {op} {b} is what?",
    "I need the result of {a} {op} {b}.",
    "Tell me the result of {a} {op} {b}.",
    "Work out {a} {op} {b}.",
    "Please calculate {a} {op} {b}.",
    "What do we get for {a} {op} {b}?",
    "Find {a} {op} {b}.",
    "Give me the result of {a} {op} {b}.",
    "Can you compute {a} {op} {b}?",
    "Solve {a} {op} {b}.",
    "If you take {a} {op} {b}, what do you get?",
    "Do you know what {a} {op} {b} is?",
)
WORDED = {
    "+": (
        "Add {a} and {b}.",
        "What is the sum of {a} and {b}?",
        "I have {a} apples and get {b} more. How many apples do I have?",
        "Tell me the sum of {a} and {b}.",
        "There are {a} birds and {b} more come. How many birds are there?",
        "Give me the sum of {a} and {b}.",
    ),
    "-": (
        "Subtract {b} from {a}.",
        "What is the difference of {a} and {b}?",
        "I have {a} apples and give away {b}. How many apples do I have?",
        "Tell me the difference of {a} and {b}.",
        "Take {b} away from {a}.",
        "There are {a} birds and {b} fly away. How many birds are there?",
    ),
    "*": (
        "Multiply {a} by {b}.",
        "What is the product of {a} and {b}?",
        "I have {a} boxes with {b} apples each. How many apples do I have?",
        "Tell me the product of {a} and {b}.",
        "Multiply {a} and {b}.",
        "Give me the product of {a} and {b}.",
    ),
}
WORDS = {"+": "plus", "-": "minus", "*": "times"}
ASCII = {"*": "x"}


def is_held_out_pair(op: str, a: int, b: int) -> bool:
    """Whether an operand pair is excluded from training; times tables are always complete."""
    return op != "*" and zlib.crc32(f"{a}{op}{b}".encode()) % HELD_OUT_PAIRS == 0


def draw(rng: random.Random, held_out_pair: bool) -> tuple[str, int, int]:
    """Draws an operation and operands, from the training or the held-out pairs."""
    while True:
        op = rng.choice("++--*") if not held_out_pair else rng.choice("+-")
        if op == "*":
            return op, rng.randint(0, 12), rng.randint(0, 12)
        top = rng.choice((20, 100, 100, 100))
        total = rng.randint(0, top)
        part = rng.randint(0, total)
        a, b = (part, total - part) if op == "+" else (total, part)
        if is_held_out_pair(op, a, b) == held_out_pair:
            return op, a, b


def thought_for(op: str, a: int, b: int) -> str:
    """Reasoning: digits from right to left, with carry or borrow."""
    if op == "*":
        return f"From the times table of {max(a, b)}: {a} x {b} = {a * b}."
    ones_a, ones_b, tens_a, tens_b = a % 10, b % 10, a // 10, b // 10
    if op == "+":
        ones = ones_a + ones_b
        carry = ones // 10
        last = f" + {carry}" if carry else ""
        tens = f"Tens: {tens_a} + {tens_b}{last} = {tens_a + tens_b + carry}."
        return f"Ones: {ones_a} + {ones_b} = {ones}, write {ones % 10}, carry {carry}. {tens}"
    borrow = int(ones_a < ones_b)
    last = f" - {borrow}" if borrow else ""
    tens = f"Tens: {tens_a} - {tens_b}{last} = {tens_a - tens_b - borrow}."
    ones_a += 10 * borrow
    return f"Ones: {ones_a} - {ones_b} = {ones_a - ones_b}, borrow {borrow}. {tens}"


def arithmetic(rng: random.Random, held_out: bool, new_pair: bool = False) -> Example:
    """Makes an arithmetic question; with `new_pair`, from held-out operand pairs."""
    op, a, b = draw(rng, new_pair)
    result = {"+": a + b, "-": a - b, "*": a * b}[op]
    symbol = ASCII.get(op, op)
    if rng.random() < 0.25:
        question = phrase(rng, WORDED[op], held_out, a=a, b=b)
    else:
        asked = rng.choice((symbol, symbol, WORDS[op]))
        question = phrase(rng, COMMON, held_out, a=a, b=b, op=asked)
    kind = "arithmetic, new operands" if new_pair else "arithmetic"
    return chat(kind, thought_for(op, a, b), question, f"{a} {symbol} {b} = {result}.")
