"""Prefix warm-up: an idle server precomputes the next turn."""

import time

import pytest

from tests.server.running_server import RunningServer, eventually

SYSTEM = "You answer questions about capitals of countries in Europe. " * 8
QUESTION = {"role": "user", "content": "What is the capital of France?"}
OUTPUT = "Paris is the capital, and the largest city. " * 8  # the only output that SCHEMA allows
SCHEMA = {"enum": [OUTPUT]}
PAGE = 32  # tokens


def chat_body(messages):
    response_format = {"type": "json_schema", "json_schema": {"name": "said", "schema": SCHEMA}}
    return {"messages": messages, "response_format": response_format, "reasoning_effort": "high"}


def messages_body(messages):
    system, *turns = messages
    response_format = {"format": {"type": "json_schema", "schema": SCHEMA}}
    extra_body = {
        "output_config": response_format,
        "max_tokens": 600,
        "thinking": {"type": "enabled"},
    }
    return {"system": system["content"], "messages": turns, **extra_body}


def responses_body(messages):
    response_format = {"format": {"type": "json_schema", "name": "said", "schema": SCHEMA}}
    return {"input": messages, "text": response_format, "reasoning": {"effort": "high"}}


PROTOCOLS = [
    ("/v1/chat/completions", chat_body),
    ("/v1/messages", messages_body),
    ("/v1/responses", responses_body),
]


def num_cached(server, messages):
    body = {**chat_body(messages), "max_tokens": 1}
    usage = server.post("/v1/chat/completions", body).json()["usage"]
    return usage["prompt_tokens_details"]["cached_tokens"]


def wait_until_idle(server):
    def is_idle():
        before = server.metric("engine_steps_total")
        time.sleep(0.15)  # longer than WARMUP_DELAY
        return server.metric("engine_steps_total") == before

    assert eventually(is_idle)


@pytest.mark.slow
def test_second_turn_hits_the_first_output(server):
    for path, body in PROTOCOLS:
        for stream in (False, True):
            messages = [{"role": "system", "content": f"{path} {stream} {SYSTEM}"}, QUESTION]
            response = server.post(path, {**body(messages), "stream": stream, "temperature": 0})
            assert OUTPUT[:20] in response.text or stream, response.text
            wait_until_idle(server)
            assert server.is_empty
            history = [*messages, {"role": "assistant", "content": f'"{OUTPUT}"'}]
            tokenized = server.post(
                "/tokenize", {"messages": history, "add_generation_prompt": False}
            )
            num_hits = num_cached(server, [*history, QUESTION])
            assert num_hits >= tokenized.json()["count"] - PAGE, (path, stream)
    # Metrics count the hits of requests, not those of prefix warm-up.
    num_prompt_tokens = server.metric("prompt_tokens_total")
    assert server.metric("prefix_cache_hits_total") < num_prompt_tokens


@pytest.mark.slow
def test_no_prefix_warmup_flag():
    server = RunningServer("--no-prefix-warmup")
    messages = [{"role": "system", "content": SYSTEM}, QUESTION]
    first = server.post("/v1/chat/completions", {**chat_body(messages), "temperature": 0}).json()
    wait_until_idle(server)
    history = [*messages, {"role": "assistant", "content": f'"{OUTPUT}"'}, QUESTION]
    assert num_cached(server, history) <= first["usage"]["prompt_tokens"]
    assert server.stop() == 0
