"""Routing keys of bodies that week 5, day 7 does not test; hit rates of routers."""

import json

import pytest

from tests.course.support import run_command
from tiny_llm.server.replicas.routing import routing_key


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"prompt": ["a", "b"]}, "a b"),
        ({"messages": [{"content": "U"}], "system": [{"type": "text", "text": "S"}]}, "S\nU"),
        ({"input": "I", "instructions": "S"}, "S\nI"),
        ({"prompt": ""}, ""),
        ({}, ""),
        ([1], ""),
    ],
)
def test_routing_key(body, text):
    assert routing_key(json.dumps(body).encode()) == text


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 100_000])
def test_invalid_json_has_an_empty_routing_key(body):
    assert routing_key(body) == ""


@pytest.mark.slow
def test_prefix_routing_raises_the_hit_rate():
    """`pdm run compare-routing` has two real engines, without Ray."""
    flags = ("--conversations", "3", "--turns", "2")
    done = run_command("tools.compare_routing", None, *flags)
    assert done.returncode == 0, done.stderr
    _, *rows = done.stdout.splitlines()
    rates = {row[:14].strip(): int(row.split()[-1].removesuffix("%")) for row in rows}
    assert rates["prefix-aware"] > rates["round robin"] > 0
