"""Calculator tools, for arithmetic questions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .arithmetic import COMMON, WORDED, draw
from .paraphrase import phrase

if TYPE_CHECKING:
    import random

ADD, SUBTRACT, MULTIPLY = "+", "-", "*"
# Tool names by operation; "" is a tool that evaluates an expression.
NAMES = {
    ADD: ("add", "sum", "add_numbers", "plus", "calculate_sum"),
    SUBTRACT: ("subtract", "minus", "difference", "subtract_numbers"),
    MULTIPLY: ("multiply", "times", "product", "multiply_numbers"),
    "": ("calculate", "calculator", "compute", "evaluate", "math"),
}
DESCRIPTIONS = {
    ADD: ("Adds two numbers.", "The sum of two numbers."),
    SUBTRACT: ("Subtracts two numbers.", "The difference of two numbers."),
    MULTIPLY: ("Multiplies two numbers.", "The product of two numbers."),
    "": ("Calculates.", "Computes the value of an expression.", "A calculator."),
}
ARGUMENTS = (("a", "b"), ("x", "y"), ("first", "second"), ("left", "right"), ("n", "m"))
EXPRESSIONS = ("expression", "formula", "input", "term")
SYMBOLS = {ADD: ("+", "+", "plus"), SUBTRACT: ("-", "-", "minus"), MULTIPLY: ("x", "*", "times")}


@dataclass(frozen=True)
class Sum:
    """An arithmetic request, the tool call's argument values and result, and the answer."""

    request: str
    values: tuple[str, ...]
    result: str
    answer: str


def ask_sum(rng: random.Random, held_out: bool, op: str) -> Sum:
    """Makes an arithmetic request for operation `op`, or as an expression if `op` is empty."""
    while True:
        asked, a, b = draw(rng, held_out_pair=held_out and op != MULTIPLY and rng.random() < 0.5)
        if op in ("", asked):
            break
    if rng.random() < 0.3:  # larger operands, for which the model needs a tool
        a, b = a + 100 * rng.randint(0, 9), b + 100 * rng.randint(0, 9)
        a, b = (max(a, b), min(a, b)) if asked == SUBTRACT else (a, b)
    result = {ADD: a + b, SUBTRACT: a - b, MULTIPLY: a * b}[asked]
    if rng.random() < 0.4:
        request = phrase(rng, WORDED[asked], held_out, a=a, b=b)
    else:
        request = phrase(rng, COMMON, held_out, a=a, b=b, op=rng.choice(SYMBOLS[asked]))
    values = (str(a), str(b)) if op else (f"{a} {asked} {b}",)
    symbol = "x" if asked == MULTIPLY else asked
    return Sum(request, values, str(result), f"{a} {symbol} {b} = {result}.")
