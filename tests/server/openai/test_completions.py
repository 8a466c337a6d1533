"""Completions API, tested with OpenAI's client."""

import pytest

from tests.server.openai.test_chat import UNICODE
from tests.server.protocols import CHAT

BODY = {"model": "demo", "prompt": "The capital of France is", "max_tokens": 6}
IGNORE_EOS = {"ignore_eos": True}


def test_text_and_token_ids_give_the_same_completion(client, server):
    text = BODY["prompt"]
    tokens = server.post("/tokenize", {"prompt": text}).json()["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).json() == {"prompt": text}
    texts = [
        client.completions.create(**{**BODY, "prompt": p}).choices[0].text for p in (text, tokens)
    ]
    assert texts[0] == texts[1]
    assert "Paris" in texts[0]


def test_multiple_prompts_with_n(client):
    body = {**BODY, "prompt": [BODY["prompt"], "Hello"], "n": 2, "seed": 3, "temperature": 1.0}
    response = client.completions.create(**body)
    assert [choice.index for choice in response.choices] == [0, 1, 2, 3]
    separate = client.completions.create(**{**body, "prompt": "Hello"})
    assert [c.text for c in response.choices[2:]] == [c.text for c in separate.choices]
    streamed = ["", "", "", ""]
    for chunk in client.completions.create(**body, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].text
    assert streamed == [choice.text for choice in response.choices]


def test_echo(client):
    plain = client.completions.create(**BODY).choices[0].text
    assert client.completions.create(**BODY, echo=True).choices[0].text == BODY["prompt"] + plain
    chunks = client.completions.create(**BODY, echo=True, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == BODY["prompt"] + plain


@pytest.mark.parametrize("number", [2, 20])
def test_logprobs_have_one_entry_per_token(client, number):
    choice = client.completions.create(**BODY, logprobs=number, temperature=0).choices[0]
    actual = choice.logprobs
    assert len(actual.tokens) == len(actual.token_logprobs) == len(actual.text_offset)
    for text, top in zip(actual.tokens, actual.top_logprobs, strict=True):
        assert number <= len(top) <= number + number // 20
        assert text in top
    assert actual.text_offset[0] == 0
    assert "".join(actual.tokens).strip() == choice.text.strip()


@pytest.mark.parametrize("limit", [0, 6])
@pytest.mark.parametrize("n", [1, 2])
def test_echo_with_logprobs_scores_the_prompt(client, limit, n):
    sampled = {} if n == 1 else {"n": n, "temperature": 1.0, "seed": 2}
    body = {**BODY, **sampled, "max_tokens": limit, "echo": True, "logprobs": 1}
    body["extra_body"] = IGNORE_EOS
    response = client.completions.create(**body)
    assert response.usage.completion_tokens == limit * n
    for choice in response.choices:
        actual = choice.logprobs
        assert "".join(actual.tokens) == choice.text
        assert actual.token_logprobs[0] is None
        assert all(number < 0 for number in actual.token_logprobs[1:])
        for offset, text in zip(actual.text_offset, actual.tokens, strict=True):
            assert choice.text[offset:].startswith(text)
        chunks = [chunk.choices[0] for chunk in client.completions.create(**body, stream=True)]
        pieces = [chunk for chunk in chunks if chunk.index == choice.index]
        assert "".join(piece.text for piece in pieces) == choice.text
        assert [text for piece in pieces for text in piece.logprobs.tokens] == actual.tokens
        assert pieces[-1].finish_reason == choice.finish_reason == "length"


def test_echo_logprobs_match_generation_logprobs(client, server):
    response = client.completions.create(**BODY, logprobs=0).choices[0]
    again = {**BODY, "prompt": BODY["prompt"] + response.text, "max_tokens": 0}
    scored = client.completions.create(**again, echo=True, logprobs=0).choices[0].logprobs
    generated = response.logprobs.token_logprobs
    assert scored.token_logprobs[-len(generated) :] == pytest.approx(generated, abs=0.02)
    assert [len(top) for top in scored.top_logprobs[1:]] == [1] * (len(scored.tokens) - 1)
    # lm-eval drops the last entry, as that of the one token which it requests: here, EOS.
    (eos,) = server.post("/tokenize", {"prompt": "<|im_end|>"}).json()["tokens"]
    ended = {**again, "max_tokens": 1, "logit_bias": {str(eos): 100}}
    choice = client.completions.create(**ended, echo=True, logprobs=0).choices[0]
    assert (choice.text, choice.finish_reason) == (again["prompt"], "stop")
    assert choice.logprobs.token_logprobs[:-1] == scored.token_logprobs


def test_continuous_usage_stats(client):
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = client.completions.create(
        **BODY, stream=True, stream_options=options, extra_body=IGNORE_EOS
    )
    assert [chunk.usage.completion_tokens for chunk in chunks] == list(range(1, 7))
    assert last.usage == chunks[-1].usage
    assert last.choices == []


def test_characters_of_several_tokens(client):
    extra = {"structured_outputs": {"choice": [UNICODE]}}
    body = {**BODY, "extra_body": extra, "max_tokens": 60}
    (choice,) = client.completions.create(**body, logprobs=1).choices
    assert "".join(choice.logprobs.tokens) == choice.text == UNICODE
    chunks = client.completions.create(**body, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == UNICODE


def test_tokenize_text_and_chat(server):
    actual = server.post("/tokenize", {"prompt": UNICODE, "return_token_strs": True}).json()
    assert len(actual["token_strs"]) == actual["count"] == len(actual["tokens"])
    assert server.post("/detokenize", {"tokens": actual["tokens"]}).json() == {"prompt": UNICODE}
    strings = server.post("/tokenize", {"prompt": "a cat", "return_token_strs": True}).json()
    assert "".join(strings["token_strs"]) == "aĠcat"
    body = {"messages": CHAT.body()["messages"], "chat_template_kwargs": {"enable_thinking": False}}
    chat = server.post("/tokenize", body).json()
    assert (chat["count"], chat["token_strs"]) == (CHAT.count(server), None)
    body["add_generation_prompt"] = False
    assert server.post("/tokenize", body).json()["count"] < chat["count"]
