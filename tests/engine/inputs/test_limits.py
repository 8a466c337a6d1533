"""Limits on JSON values and nesting, and on text before it is encoded."""

import json
import random

import pytest

from tiny_llm.engine.inputs.limits import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_VALUES,
    JsonLimits,
    encode_text,
)
from tiny_llm.errors import UserError

TEXTS = ['a,b[{]}\\"', "\\", '\\\\"', '"', "[[[", "é,", ""]


def random_value(rng: random.Random, depth: int = 0) -> object:
    kind = rng.randrange(6) if depth < 6 else 0
    if kind < 2:
        return rng.choice([*TEXTS, 1, 2.5, None, True])
    if kind < 4:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(5))]
    names = [rng.choice(TEXTS) + str(index) for index in range(rng.randrange(5))]
    return {name: random_value(rng, depth + 1) for name in names}


def descendants(value: object) -> list[object]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [nested for part in parts for nested in (part, *descendants(part))]


def test_random_documents_in_random_pieces():
    rng = random.Random(0)
    for _ in range(500):
        value = random_value(rng)
        rest = text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
        limits = JsonLimits("it")
        while rest:
            size = rng.randrange(1, 8)
            limits.feed(rest[:size])
            rest = rest[size:]
        containers = [v for v in (value, *descendants(value)) if isinstance(v, dict | list)]
        assert limits.num_containers == len(containers), text
        assert limits.num_values == len(descendants(value)) + containers.count(
            []
        ) + containers.count({})


@pytest.mark.parametrize("pair", ["[]", '{"a":}'])
def test_nesting_depth_is_limited(pair):
    opening, closing = pair[:-1], pair[-1]
    limits = JsonLimits("it")
    limits.check(opening * MAX_DEPTH + "1" + closing * MAX_DEPTH)
    limits.check("[" + "[]," * 1000 + "1]")  # wide, but not deep
    with pytest.raises(UserError, match="^it is nested more than 100 levels deep; flatten it"):
        limits.check(opening * (MAX_DEPTH + 1))
    limits.check('["' + "[" * 1000 + '"]')


def test_values_of_several_documents_are_summed():
    limits = JsonLimits("it", 80 / MAX_VALUES, "use less")
    limits.check(str([1] * 40))
    limits.check('"unfinished')
    limits.check(str([1] * 40))
    with pytest.raises(UserError, match=r"^it has more than 80 JSON values; use less\.$"):
        limits.check("[1]")
    with pytest.raises(UserError, match="^it has more than 16,384 JSON objects and lists; send"):
        JsonLimits("it").check("{}," * (MAX_CONTAINERS + 1))


class CountingTokenizer:
    """Tokenizer with one token per word; records the texts it encodes."""

    def __init__(self):
        self.texts = []

    def encode(self, text, add_special_tokens):
        self.texts.append(text)
        return [0] * text.count(" ")


def test_overlong_text_is_not_encoded_as_a_whole():
    tokenizer, text = CountingTokenizer(), "why " * 300_000
    assert len(encode_text(tokenizer, "it", text, 1_200_000)) == 300_000
    assert tokenizer.texts == [text], "a text that may fit must be encoded only once"
    tokenizer.texts.clear()
    with pytest.raises(
        UserError, match=r"^it is too long: the first 65,536 of its 1,200,000 characters are about"
    ):
        encode_text(tokenizer, "it", text, 2048)
    assert list(map(len, tokenizer.texts)) == [65536]
    long_words = f"{'-' * 999} " * 1000
    assert len(encode_text(tokenizer, "it", long_words, 1000)) == 1000
