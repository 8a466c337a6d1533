"""The course's terms: definitions, reasons, differences, introduction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .example import Example, chat
from .paraphrase import maybe_lowercase, phrase
from .tables import read_rows

if TYPE_CHECKING:
    import random

DEFINITIONS = [(names.split(", "), text) for names, text in read_rows("definitions")]
REASONS = read_rows("reasons")
DIFFERENCES = read_rows("differences")
INTRODUCTION = read_rows("introduction")[0][0]

DEFINITION_QUESTIONS = (
    "What is {x}?",
    "Define {x}.",
    "Explain {x}.",
    "What does {x} mean?",
    "What is meant by {x}?",
    "Explain {x} in one sentence.",
    "Can you explain {x}?",
    "Tell me what {x} is.",
    "Give me a definition of {x}.",
    "What do we mean by {x}?",
    "Tell me about {x}.",
    "Can you tell me what {x} is?",
    "In short, what is {x}?",
    "Please explain what {x} means.",
    "What is {x} in a language model?",
    "Explain the term {x}.",
    "I do not know the term {x}. What does it mean?",
    "How do you define {x}?",
    "Could you explain {x}?",
    "Can you define {x} in one sentence?",
)
REASON_QUESTIONS = (
    "Why {q}?",
    "Can you explain why {x}?",
    "Tell me why {x}.",
    "Could you explain why {x}?",
    "Explain why {x}.",
    "What is the reason why {x}?",
    "Why {q}? I want to know.",
    "Do you know why {x}?",
    "Can you tell me why {x}?",
)
DIFFERENCE_QUESTIONS = (
    "What is the difference between {a} and {b}?",
    "How is {a} different from {b}?",
    "Explain the difference between {a} and {b}.",
    "Tell me the difference between {a} and {b}.",
    "How do {a} and {b} differ?",
    "Compare {a} and {b}.",
    "What's the difference between {a} and {b}?",
    "In what way is {a} different from {b}?",
    "Can you tell me the difference between {a} and {b}?",
)
INTRODUCTION_QUESTIONS = (
    "Give me a short introduction to large language model.",
    "Give me a short introduction to large language models.",
    "Please introduce large language models briefly.",
    "Please give me a brief introduction to large language models.",
    "What are large language models? Give me an introduction.",
    "Introduce large language models.",
    "Write a short introduction to large language models.",
    "I am new to this. Give me an introduction to large language models.",
    "Write a brief introduction to large language models.",
    "Explain large language models to a beginner.",
    "Can you introduce large language models?",
    "Tell me briefly about large language models.",
    "I need a short introduction to large language models.",
    "Can you write an introduction to large language models?",
)


def term(rng: random.Random, held_out: bool) -> Example:
    """Makes a question about a term, a reason or the difference between terms."""
    choice = rng.random()
    if choice < 0.72:
        names, definition = rng.choice(DEFINITIONS)
        question = phrase(rng, DEFINITION_QUESTIONS, held_out, x=rng.choice(names))
        thought = f"The user asks what {names[0]} is. This is a term from language models."
        return chat("terms", thought, maybe_lowercase(rng, question), definition)
    if choice < 0.86:
        direct, clause, answer = rng.choice(REASONS)
        question = phrase(rng, REASON_QUESTIONS, held_out, q=direct, x=clause)
        return chat("terms", f"The user asks why {clause}. I give the reason.", question, answer)
    a, b, answer = rng.choice(DIFFERENCES)
    question = phrase(rng, DIFFERENCE_QUESTIONS, held_out, a=a, b=b)
    thought = f"The user wants to compare {a} and {b}. I say what each one does."
    return chat("terms", thought, maybe_lowercase(rng, question), answer)


def introduction(rng: random.Random, held_out: bool) -> Example:
    """Makes a request for an introduction to LLMs, the package's first example prompt."""
    question = phrase(rng, INTRODUCTION_QUESTIONS, held_out)
    thought = "The user wants a short introduction. I say what they are and how they work."
    return chat("introduction", thought, question, INTRODUCTION)
