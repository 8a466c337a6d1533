"""vLLM's extensions to OpenAI's API, with and without streaming."""

import json

import openai
import pytest

from tests.server import protocols

CHAT = protocols.CHAT.body()
FRANCE = CHAT["messages"]
CHAT_PATH = protocols.CHAT.path
TEXT = {"model": "demo", "prompt": "The capital of France is", "max_tokens": 6, "temperature": 0}


def tokenize(server, text):
    return server.post("/tokenize", {"prompt": text}).json()["tokens"]


def stream_chunks(server, path, body):
    response = server.post(path, {**body, "stream": True})
    assert response.status_code == 200, response.text
    events = [e.removeprefix("data: ") for e in response.text.split("\n\n") if e]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


def test_completion_token_ids(server, client):
    more = {"return_token_ids": True, "return_tokens_as_token_ids": True}
    more["add_special_tokens"] = True  # no effect, because the demo's tokenizer adds none
    (choice,) = client.completions.create(**TEXT, logprobs=0, extra_body=more).choices
    assert choice.prompt_token_ids == tokenize(server, TEXT["prompt"])
    assert choice.logprobs.tokens == [f"token_id:{token}" for token in choice.token_ids]
    text = server.post("/detokenize", {"tokens": choice.token_ids}).json()["prompt"]
    assert text.startswith(choice.text)
    chunks = stream_chunks(server, "/v1/completions", {**TEXT, **more, "logprobs": 0})
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [token for c in choices for token in c["token_ids"]] == choice.token_ids
    assert [c["prompt_token_ids"] for c in choices][:2] == [choice.prompt_token_ids, None]
    (plain,) = client.completions.create(**TEXT).choices
    assert (plain.token_ids, plain.prompt_token_ids, plain.prompt_logprobs) == (None, None, None)


def test_chat_token_ids(server, client):
    more = {"return_token_ids": True}
    response = client.chat.completions.create(**CHAT, extra_body=more)
    (choice,) = response.choices
    assert len(choice.token_ids) == response.usage.completion_tokens
    assert len(response.prompt_token_ids) == response.usage.prompt_tokens
    first, *others = stream_chunks(server, CHAT_PATH, {**CHAT, **more})
    assert first["prompt_token_ids"] == response.prompt_token_ids
    assert all("prompt_token_ids" not in chunk for chunk in others)
    streamed = [token for chunk in others for token in chunk["choices"][0].get("token_ids", [])]
    assert streamed == choice.token_ids
    plain = client.chat.completions.create(**CHAT)
    assert plain.prompt_token_ids is None
    assert (plain.choices[0].token_ids, plain.prompt_logprobs) == (None, None)


@pytest.mark.parametrize("top", [0, 2])
def test_prompt_logprobs(server, client, top):
    more = {"prompt_logprobs": top, "return_token_ids": True}
    chat = client.chat.completions.create(**CHAT, max_tokens=1, extra_body=more)
    (completion,) = client.completions.create(
        **TEXT, n=1, echo=True, logprobs=1, extra_body=more
    ).choices
    for response in (chat, completion):
        first, *others = response.prompt_logprobs
        assert first is None
        pairs = list(zip(response.prompt_token_ids[1:], others, strict=True))
        for token, entries in pairs:
            assert str(token) in entries
            assert max(top, 1) <= len(entries) <= top + 1
            ranks = sorted(e["rank"] for e in entries.values() if e["rank"] is not None)
            assert ranks == list(range(1, top + 1))
    echoed = completion.logprobs.token_logprobs[1 : len(pairs) + 1]
    assert echoed == [entries[str(token)]["logprob"] for token, entries in pairs]


def test_number_of_prompt_logprobs_is_bounded(server):
    for path, body in (("/v1/completions", TEXT), (CHAT_PATH, CHAT)):
        response = server.post(path, {**body, "stream": True, "prompt_logprobs": 1})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt_logprobs")
    body = {"prompt": [[5] * 1000] * 7, "max_tokens": 1, "prompt_logprobs": 20}
    assert server.reject("/v1/completions", body) == (
        "The prompts have 7000 tokens with 21 log-probabilities each; a request may "
        "have 65536 log-probabilities of prompt tokens. Send fewer prompts, or request fewer "
        "alternatives."
    )
    echo = {"prompt": [[5] * 1000] * 70, "max_tokens": 1, "echo": True, "logprobs": 1}
    server.reject("/v1/completions", echo)
    assert server.post("/v1/completions", {**echo, "prompt": [[5] * 100] * 7}).status_code == 200


def test_include_stop_str_in_output(client):
    for is_included, content in ((True, "The capital of France"), (False, "The capital of")):
        extra = {"include_stop_str_in_output": is_included}
        answer = client.chat.completions.create(**CHAT, stop=[" France"], extra_body=extra)
        (choice,) = answer.choices
        assert (choice.message.content, choice.stop_reason) == (content, " France")


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_token_budget(server, client, stream):
    body = protocols.CHAT.body(effort="high", temperature=0)
    extra = {"thinking_token_budget": 3, "return_token_ids": True}
    start, end = tokenize(server, "<think>") + tokenize(server, "</think>")
    if stream:
        choices = [c["choices"][0] for c in stream_chunks(server, CHAT_PATH, {**body, **extra})]
        ids = [token for choice in choices for token in choice.get("token_ids", [])]
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
    else:
        (choice,) = client.chat.completions.create(**body, extra_body=extra).choices
        ids, text = choice.token_ids, choice.message.content
    assert ids.index(end) - ids.index(start) - 1 == 3
    assert text


@pytest.mark.parametrize("stream", [False, True])
def test_include_reasoning_false(server, stream):
    answer = protocols.CHAT.ask(server, effort="high", include_reasoning=False, stream=stream)
    assert answer.reasoning_tokens > 0
    assert "reasoning_content" not in answer.raw.choices[0].message.to_dict()


def test_completion_response_format(client):
    extra = protocols.CHAT.response_format({"enum": ["a", "b"]})
    (choice,) = client.completions.create(**TEXT, extra_body=extra).choices
    assert json.loads(choice.text) in ("a", "b")


def test_final_text_chunk_has_the_finish_reason(server):
    chunks = stream_chunks(server, CHAT_PATH, {**CHAT, "max_tokens": 3})
    last = chunks[-1]["choices"][0]
    assert last["delta"]["content"]
    assert last["finish_reason"] == "length"
    options = {"include_usage": True, "continuous_usage_stats": True}
    counted = stream_chunks(server, CHAT_PATH, {**CHAT, "stream_options": options})
    tokens = [chunk["usage"]["completion_tokens"] for chunk in counted if chunk["choices"]]
    assert tokens == sorted(set(tokens))


def test_request_id_headers(server, client):
    response = client.chat.completions.create(**CHAT, max_tokens=1)
    assert response._request_id.startswith("req_")
    assert response.system_fingerprint.startswith("tiny-llm-")
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**CHAT, max_tokens=0)
    assert error.value.request_id.startswith("req_")
    failed = server.post("/v1/messages", {})
    assert failed.json()["request_id"] == failed.headers["request-id"]


def test_tokenize_continues_a_message(server):
    messages = [*FRANCE, {"role": "assistant", "content": "The capital"}]
    more = {"continue_final_message": True, "add_generation_prompt": False}
    ids = server.post("/tokenize", {"messages": messages, **more}).json()["tokens"]
    more |= {"return_token_ids": True, "max_tokens": 1}
    assert protocols.CHAT.ask(server, messages, **more).raw.prompt_token_ids == ids
