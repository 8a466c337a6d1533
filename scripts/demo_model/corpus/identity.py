"""Questions about the model itself, and questions that it cannot answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .example import Example, chat
from .paraphrase import phrase

if TYPE_CHECKING:
    import random

UNKNOWN_ANSWER = "I am a small demo model; I do not know that."
IDENTITY_ANSWER = (
    "I am the tiny-llm demo model, a small Qwen3 trained from scratch to show the engine."
)

IDENTITY_QUESTIONS = (
    "Who are you?",
    "What are you?",
    "What is your name?",
    "Can you tell me who you are?",
    "Tell me who you are.",
    "Introduce yourself.",
    "What model are you?",
    "Which model are you?",
    "Are you a language model?",
    "Who am I talking to?",
    "Tell me about yourself.",
    "What kind of model are you?",
    "Do you have a name?",
    "Tell me what you are.",
)
ABILITY_QUESTIONS = (
    "What can you do?",
    "What do you know?",
    "Tell me what you can do.",
    "Can you tell me what you can do?",
    "What can you help me with?",
    "What things do you know?",
    "How can you help me?",
)
ABILITY_ANSWER = (
    "I know some capitals, everyday facts, small sums and the terms of the course, and I "
    "can answer "
    "questions about a short text."
)

# (values, question templates with the value {v})
UNKNOWN = (
    (
        "the weather, the news, the bank, the train, the football match, the film, the election,"
        "the stock market, the concert, the traffic",
        (
            "What about {v} today?",
            "How is {v} today?",
            "Tell me about {v} today.",
            "How is {v} tomorrow?",
            "What will {v} be like tomorrow?",
            "How was {v} yesterday?",
        ),
    ),
    (
        "a poem, a song, a letter, a story, an email, a python program, an essay, a speech, a joke,"
        "a recipe",
        (
            "Write {v} for me.",
            "Please write me {v}.",
            "Can you write {v}?",
            "Could you write {v} for me?",
            "I need {v}. Can you write it?",
            "Write me {v}.",
        ),
    ),
    (
        "the world cup, the war, the last election, the Nobel prize, the race, the chess title",
        (
            "Who won {v}?",
            "Do you know who won {v}?",
            "Tell me who won {v}.",
            "Can you tell me who won {v}?",
            "Which country won {v}?",
        ),
    ),
    (
        "a car, gold, a house, a phone, a flight to Rome, a ticket, petrol, this book, a computer",
        (
            "What is the price of {v}?",
            "How much does {v} cost?",
            "What does {v} cost?",
            "Do you know the price of {v}?",
            "Tell me the price of {v}.",
        ),
    ),
    (
        "French, German, Latin, Chinese, Spanish, Italian, Russian",
        (
            "Translate this into {v}.",
            "How do you say hello in {v}?",
            "Can you speak {v}?",
            "Can you translate this into {v}?",
            "Say something in {v}.",
        ),
    ),
    (
        "Napoleon, Einstein, Shakespeare, Mozart, Caesar, Newton, Darwin, Beethoven, Picasso",
        (
            "Who was {v}?",
            "Tell me about {v}.",
            "When was {v} born?",
            "Can you tell me about {v}?",
            "When did {v} live?",
            "Where was {v} born?",
        ),
    ),
)


def identity(rng: random.Random, held_out: bool) -> Example:
    """Makes a question about the model's identity or abilities."""
    if rng.random() < 0.7:
        question = phrase(rng, IDENTITY_QUESTIONS, held_out)
        return chat("identity", "The user asks who I am.", question, IDENTITY_ANSWER)
    question = phrase(rng, ABILITY_QUESTIONS, held_out)
    return chat("identity", "The user asks what I can do.", question, ABILITY_ANSWER)


def unknown(rng: random.Random, held_out: bool) -> Example:
    """Makes a question to which the model must reply that it does not know."""
    values, questions = rng.choice(UNKNOWN)
    value = rng.choice([word.strip() for word in values.split(",")])
    question = phrase(rng, questions, held_out, v=value)
    return chat("unknown", "This is outside of what I know.", question, UNKNOWN_ANSWER)
