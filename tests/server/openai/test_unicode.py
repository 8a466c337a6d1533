"""Characters that span several tokens: logprobs, streams, tokenization."""

import pytest

TEXT = "Tokyo is 東京, 🎉 naïve"
EXTRA_BODY = {"structured_outputs": {"choice": [TEXT]}}
MESSAGES = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("stream", [False, True])
def test_logprob_texts_concatenate_to_the_content(client, stream):
    body = {
        "model": "demo",
        "messages": MESSAGES,
        "reasoning_effort": "none",
        "extra_body": EXTRA_BODY,
    }
    body |= {"logprobs": True, "top_logprobs": 1, "stream": stream}
    if stream:
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**body)]
        text = "".join(chunk.delta.content or "" for chunk in chunks)
        entries = [entry for c in chunks if c.logprobs for entry in c.logprobs.content]
    else:
        (choice,) = client.chat.completions.create(**body).choices
        text, entries = choice.message.content, choice.logprobs.content
    assert text == TEXT
    assert "".join(entry.token for entry in entries) == TEXT
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == TEXT
    assert any(not entry.token for entry in entries), "no multi-token character in the output"


def test_completion_logprobs(client):
    body = {"model": "demo", "prompt": "Hello", "extra_body": EXTRA_BODY, "max_tokens": 60}
    (choice,) = client.completions.create(**body, logprobs=1).choices
    assert "".join(choice.logprobs.tokens) == choice.text == TEXT
    chunks = client.completions.create(**body, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT


def test_tokenize_text_and_chat(server, client):
    actual = server.post("/tokenize", {"prompt": TEXT, "return_token_strs": True}).json()
    assert len(actual["token_strs"]) == actual["count"] == len(actual["tokens"])
    assert server.post("/detokenize", {"tokens": actual["tokens"]}).json() == {"prompt": TEXT}
    off = {"enable_thinking": False}
    chat = server.post("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": off}).json()
    usage = client.chat.completions.create(
        model="demo", messages=MESSAGES, reasoning_effort="none"
    ).usage
    assert (chat["count"], chat["token_strs"]) == (usage.prompt_tokens, None)
    shorter = server.post(
        "/tokenize", {"messages": MESSAGES, "add_generation_prompt": False}
    ).json()
    assert shorter["count"] < chat["count"]
    neither = server.post("/tokenize", {})
    assert neither.status_code == 400
    assert "Exactly one of prompt and messages" in neither.json()["error"]["message"]


def test_other_content_type_is_rejected(server):
    headers = {"content-type": "text/plain"}
    rejected = server.post("/v1/messages", {"max_tokens": 1, "messages": MESSAGES}, headers=headers)
    assert rejected.status_code == 415
    assert "must be application/json, got 'text/plain'" in rejected.json()["error"]["message"]
