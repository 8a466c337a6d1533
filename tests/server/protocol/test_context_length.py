"""Prompts beyond the context: the same error code and token counts in each protocol."""

import re

import pytest


def messages(text):
    return [{"role": "user", "content": text}]


BODIES = {
    "/v1/completions": lambda text: {"prompt": text},
    "/v1/chat/completions": lambda text: {"messages": messages(text)},
    "/v1/responses": lambda text: {"input": text},
    "/v1/messages": lambda text: {"model": "demo", "max_tokens": 8, "messages": messages(text)},
}


@pytest.mark.parametrize("num_words", [3_000, 30_000, 600_000])
@pytest.mark.parametrize("path", BODIES)
def test_overlong_prompt(server, path, num_words):
    response = server.post(path, BODIES[path]("a " * num_words))
    assert response.status_code == 400
    error = response.json()["error"]
    fields = error.get("details", error)  # Anthropic's error object has `details`
    code = error["details"]["error_code"] if "details" in error else error["code"]
    assert code == "context_length_exceeded"
    assert fields["n_ctx"] == 2048
    assert 0.7 * num_words < fields["n_prompt_tokens"] < 2.5 * num_words
    counts = re.match(r"The prompt is too long: (\d+) tokens > (\d+) maximum", error["message"])
    assert [int(count) for count in counts.groups()] == [fields["n_prompt_tokens"], 2047]
