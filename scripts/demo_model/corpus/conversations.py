"""Small talk, and questions about what the user said earlier."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .example import Example, chat
from .names import first_name, number, place_name
from .paraphrase import phrase, split_templates
from .worlds import COLOURS, FOODS, HOBBIES, JOBS

if TYPE_CHECKING:
    import random

# A user's facts: (sampler of the value {v}, statements, reply, questions, answer).
MEMORIES = (
    (
        first_name,
        (
            "My name is {v}.",
            "I am {v}.",
            "Hello, I am {v}.",
            "Hello, my name is {v}.",
            "Call me {v}.",
        ),
        "Nice to meet you, {v}.",
        (
            "What is my name?",
            "Do you know my name?",
            "Who am I?",
            "Can you tell me my name?",
            "What's my name?",
        ),
        "Your name is {v}.",
    ),
    (
        place_name,
        (
            "I live in {v}.",
            "My home is in {v}.",
            "I have a house in {v}.",
            "My house is in {v}.",
            "I moved to {v}.",
        ),
        "I see, you live in {v}.",
        (
            "Where do I live?",
            "In which town do I live?",
            "What town do I live in?",
            "Which town do I live in?",
        ),
        "You live in {v}.",
    ),
    (
        COLOURS,
        (
            "My favourite colour is {v}.",
            "I like the colour {v} best.",
            "The colour I like best is {v}.",
            "I like {v} best of all colours.",
        ),
        "{v} is a nice colour.",
        (
            "What is my favourite colour?",
            "Which colour do I like best?",
            "What colour do I like best?",
            "Which is my favourite colour?",
        ),
        "Your favourite colour is {v}.",
    ),
    (
        JOBS,
        ("I work as a {v}.", "I am a {v}.", "My job is {v}.", "I have worked as a {v} for years."),
        "That is good work.",
        (
            "What is my job?",
            "What do I do for a living?",
            "What work do I do?",
            "What job do I have?",
        ),
        "You work as a {v}.",
    ),
    (
        first_name,
        (
            "I have a dog called {v}.",
            "My dog is called {v}.",
            "The name of my dog is {v}.",
            "I own a dog called {v}.",
        ),
        "{v} is a nice name for a dog.",
        (
            "What is my dog called?",
            "What is the name of my dog?",
            "What's the name of my dog?",
            "What is my dog's name?",
        ),
        "Your dog is called {v}.",
    ),
    (
        FOODS,
        (
            "I love {v}.",
            "My favourite food is {v}.",
            "I like to eat {v}.",
            "The food I like best is {v}.",
        ),
        "That sounds good.",
        (
            "What is my favourite food?",
            "What do I like to eat?",
            "Which food do I like best?",
            "Which food do I like to eat?",
        ),
        "Your favourite food is {v}.",
    ),
    (
        HOBBIES,
        (
            "My hobby is {v}.",
            "I enjoy {v}.",
            "In the evening I enjoy {v}.",
            "I like {v} in the evening.",
        ),
        "That is a good hobby.",
        (
            "What is my hobby?",
            "What do I enjoy?",
            "Which hobby do I have?",
            "What hobby do I have?",
        ),
        "Your hobby is {v}.",
    ),
    (
        number(8, 90),
        (
            "I am {v} years old.",
            "I turned {v} this year.",
            "My age is {v}.",
            "This year I turned {v}.",
        ),
        "Thank you for telling me.",
        ("How old am I?", "What is my age?", "What age am I?", "Tell me how old I am."),
        "You are {v} years old.",
    ),
)

# (messages of the user, reply, reasoning)
SMALL_TALK = (
    (
        (
            "Hello.",
            "Hi.",
            "Hello there.",
            "Hi there!",
            "Good morning.",
            "Hey.",
            "Good evening.",
            "Hello!",
            "Good day.",
        ),
        "Hello! How can I help you?",
        "The user greets me. I greet back.",
    ),
    (
        (
            "Thanks.",
            "Thank you.",
            "Thank you very much.",
            "Thank you!",
            "Thanks a lot.",
            "Many thanks.",
            "Great, thanks.",
            "Thanks!",
        ),
        "You are welcome.",
        "The user thanks me.",
    ),
    (
        (
            "Goodbye.",
            "Bye.",
            "See you.",
            "Goodbye!",
            "Bye, see you.",
            "Good night.",
            "See you later.",
            "Bye!",
        ),
        "Goodbye!",
        "The user says goodbye.",
    ),
    (
        (
            "How are you?",
            "How are you today?",
            "Are you well?",
            "Hello, how are you?",
            "How do you do?",
        ),
        "I am fine, thank you.",
        "The user asks how I am.",
    ),
)


def memory(rng: random.Random, held_out: bool) -> Example:
    """Makes a chat in which the user states up to three facts, then asks for one of them."""
    facts = rng.sample(MEMORIES, rng.choice((1, 1, 2, 2, 3)))
    turns: list[str] = []
    recalls = []
    for draw, statements, reply, questions, answer in facts:
        value = draw(rng, held_out)
        statement = rng.choice(split_templates(statements, held_out)).format(v=value)
        reply = reply.format(v=value)
        turns += [statement, reply[0].upper() + reply[1:]]
        recalls.append((statement, questions, answer.format(v=value)))
    statement, questions, answer = rng.choice(recalls)
    thought = f'The user said: "{statement}"'
    return chat("conversation", thought, *turns, phrase(rng, questions, held_out), answer)


def small_talk(rng: random.Random, held_out: bool) -> Example:
    """Makes a greeting, thanks or similar small talk."""
    texts, answer, thought = rng.choice(SMALL_TALK)
    return chat("conversation", thought, rng.choice(split_templates(texts, held_out)), answer)
