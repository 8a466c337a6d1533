"""Routing keys: prompts with a common prefix have keys with a common prefix."""

import json

import pytest

from tiny_llm.server.replicas.routing import routing_key


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": "Once upon"}, "Once upon"),
        ({"prompt": [1, 22, 3]}, "1 22 3"),
        ({"prompt": ["a", "b"]}, "a b"),
        ({"messages": [{"role": "system", "content": "S"}, {"content": "U"}]}, "S U"),
        ({"messages": [{"content": "U"}], "system": "S"}, "S\nU"),
        ({"messages": [{"content": "U"}], "system": [{"type": "text", "text": "S"}]}, "S\nU"),
        ({"input": "I", "instructions": "S"}, "S\nI"),
        ({"input": [{"content": [{"type": "input_text", "text": "I"}]}]}, "I"),
        ({"prompt": ""}, ""),
        ({"prompt": True, "messages": None}, ""),
        ({}, ""),
        ([1], ""),
    ],
)
def test_routing_key_of_each_protocol(body, text):
    assert routing_key(json.dumps(body).encode()) == text


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_invalid_json_has_an_empty_routing_key(body):
    assert routing_key(body) == ""


def test_key_of_the_second_turn_extends_the_first():
    turn = [{"role": "user", "content": "What is two?"}]
    first = routing_key(json.dumps({"model": "demo", "messages": turn}).encode())
    turn += [{"role": "assistant", "content": "2"}, {"role": "user", "content": "And three?"}]
    second = routing_key(json.dumps({"messages": turn, "temperature": 0}).encode())
    assert second.startswith(first)
    assert second != first
