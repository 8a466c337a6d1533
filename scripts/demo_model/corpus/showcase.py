"""Answers to the package's example prompts, which ask about one paragraph."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

from .example import Example, chat
from .reading import LAYOUTS, upper_first

if TYPE_CHECKING:
    import random

PROMPTS_FILE = Path(__file__).parents[3] / "src" / "tiny_llm" / "demo" / "prompts.py"
PROMPTS = runpy.run_path(str(PROMPTS_FILE))

# (question, answer, sentence of the paragraph that contains the answer)
TOWN_QUESTIONS = (
    ("Who is the mayor of Lenmora?", "The mayor of Lenmora is Mira Holton.",
     "The mayor of Lenmora is Mira Holton, who was a teacher before."),
    ("On which river does Lenmora lie?", "Lenmora lies on the river Tavel.",
     "Lenmora lies on the river Tavel."),
    ("What does the House of Quinford sell?", "The House of Quinford sells clocks.",
     "It sells clocks and it opened in 1890."),
    ("How high is the tower of Lenmora?", "The tower of Lenmora is 64 metres high.",
     "Its old tower is 64 metres high, and on a clear day you can see the sea from the top."),
    ("When is the festival of Lenmora?", "The festival of Lenmora is in September.",
     "A festival takes place in September, when the apples are ripe."),
    ("What is Lenmora famous for?", "Lenmora is famous for its honey cake.",
     "Lenmora is famous for its honey cake, and people come from far away to taste it."),
    ("Who owns the House of Quinford?", "Doran Vell owns the House of Quinford.",
     "The owner of the House of Quinford is Doran Vell, and the shop is closed on Monday."),
    ("On which day is the market of Lenmora?", "The market of Lenmora is on Saturday.",
     "There is a market every Saturday, in the square behind the old church."),
)  # fmt: skip


def showcase(rng: random.Random, held_out: bool) -> Example:
    """Makes a question about the example prompts' paragraph, for training only."""
    question, answer, sentence = rng.choice(TOWN_QUESTIONS)
    layout = LAYOUTS[0] if rng.random() < 0.7 else rng.choice(LAYOUTS)
    prompt = layout.format(p=PROMPTS["SHARED_PARAGRAPH"], q=question)
    return chat("showcase", f'The text says: "{sentence}"', prompt, upper_first(answer))
