"""Short representations of values in error messages."""

import tracemalloc

import pytest

from tiny_llm.errors import short_repr


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a\nb", r"'a\nb'"),
        ([1, "b"], "[1, 'b']"),
        ("a" * 58, repr("a" * 58)),
        ("a" * 59, "'" + "a" * 56 + "…"),
        (" " * 2000, "' '…"),
        (10**5000, "an integer with thousands of digits"),
    ],
    ids=["text", "list", "60 characters", "61 characters", "spaces", "digits"],
)
def test_short_repr(value, expected):
    assert short_repr(value) == expected


def test_short_repr_does_not_copy_a_long_text():
    text = "word " * 800_000
    tracemalloc.start()
    short_repr(text)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
