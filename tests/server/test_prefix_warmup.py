"""Prefix warm-up: an idle server precomputes the next turn."""

import time

import pytest

from tests.server.protocols import CHAT, FRANCE, PROTOCOLS
from tests.server.running_server import RunningServer, eventually

SYSTEM = "You answer questions about capitals of countries in Europe. " * 8
QUESTION = {"role": "user", "content": FRANCE}
OUTPUT = "Paris is the capital, and the largest city. " * 8
BODY = {"schema": {"enum": [OUTPUT]}, "effort": "high", "temperature": 0}  # allows only OUTPUT
ANSWERED = [{"role": "assistant", "content": f'"{OUTPUT}"'}, QUESTION]
PAGE = 32  # tokens


def num_cached(server, messages):
    return CHAT.ask(server, messages, **{**BODY, "max_tokens": 1}).cached_tokens


def wait_until_idle(server):
    def is_idle():
        before = server.metric("engine_steps_total")
        time.sleep(0.15)  # longer than WARMUP_DELAY
        return server.metric("engine_steps_total") == before

    assert eventually(is_idle)
    assert server.is_empty


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
def test_second_turn_hits_the_first_output(server, protocol, stream):
    messages = [{"role": "system", "content": f"{protocol} {stream} {SYSTEM}"}, QUESTION]
    assert OUTPUT[:20] in protocol.ask(server, messages, **BODY, stream=stream).text
    wait_until_idle(server)
    body = {"messages": [*messages, ANSWERED[0]], "add_generation_prompt": False}
    num_tokens = server.post("/tokenize", body).json()["count"]
    assert num_cached(server, [*messages, *ANSWERED]) >= num_tokens - PAGE
    # Metrics count the hits of requests, not those of prefix warm-up.
    assert server.metric("prefix_cache_hits_total") < server.metric("prompt_tokens_total")


@pytest.mark.slow
def test_no_prefix_warmup_flag():
    with RunningServer("--no-prefix-warmup") as server:
        messages = [{"role": "system", "content": SYSTEM}, QUESTION]
        first = CHAT.ask(server, messages, **BODY)
        wait_until_idle(server)
        assert num_cached(server, [*messages, *ANSWERED]) <= first.prompt_tokens
