"""Chat Completions API, tested with OpenAI's client."""

import asyncio
import json

import httpx2
import openai
import pytest

from tests.server.running_server import RunningServer
from tiny_llm.models import load_weights
from tiny_llm.server.http.errors import ApiError
from tiny_llm.server.openai.chat_schema import ChatCompletionRequest
from tiny_llm.server.protocol.prompts import PromptRenderer

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PLAIN = {"model": "demo", "messages": FRANCE, "reasoning_effort": "none"}


def test_completion(client):
    response = client.chat.completions.create(**PLAIN)
    (choice,) = response.choices
    assert choice.message.content == "The capital of France is Paris."
    assert choice.finish_reason == "stop"
    assert (
        response.usage.total_tokens
        == response.usage.prompt_tokens + response.usage.completion_tokens
    )


def test_stream_matches_the_full_response(client):
    full = client.chat.completions.create(**PLAIN)
    chunks = list(
        client.chat.completions.create(**PLAIN, stream=True, stream_options={"include_usage": True})
    )
    *leading, last = chunks
    assert {(chunk.id, chunk.created) for chunk in chunks} == {(last.id, last.created)}
    assert [bool(chunk.choices[0].delta.role) for chunk in leading].index(True) == 0
    assert sum(bool(chunk.choices[0].delta.role) for chunk in leading) == 1
    text = "".join(chunk.choices[0].delta.content or "" for chunk in leading)
    assert text == full.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in leading]
    assert reasons == [None] * (len(leading) - 1) + ["stop"]
    assert last.choices == []
    assert last.usage.completion_tokens == full.usage.completion_tokens


def test_stream_usage_is_opt_in(client):
    chunks = list(client.chat.completions.create(**PLAIN, stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


def test_stream_ends_with_done(server: RunningServer):
    response = server.post("/v1/chat/completions", {**PLAIN, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert response.text.endswith("data: [DONE]\n\n")


def test_reasoning_is_separate_from_content(client):
    body = {"model": "demo", "messages": FRANCE, "reasoning_effort": "high"}
    response = client.chat.completions.create(**body)
    message = response.choices[0].message
    assert "Paris" in message.reasoning_content
    assert "<think>" not in message.reasoning_content + message.content
    assert message.content == "The capital of France is Paris."
    assert response.usage.completion_tokens_details.reasoning_tokens > 0
    stream = client.chat.completions.create(**body, stream=True)
    deltas = [chunk.choices[0].delta for chunk in stream]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == message.reasoning_content


@pytest.mark.parametrize("effort", ["none", "high"])
def test_logprob_texts_concatenate_to_the_content(client, effort):
    response = client.chat.completions.create(
        model="demo", messages=FRANCE, reasoning_effort=effort, logprobs=True, top_logprobs=2
    )
    (choice,) = response.choices
    entries = choice.logprobs.content
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    chunks = client.chat.completions.create(
        model="demo", messages=FRANCE, reasoning_effort=effort, logprobs=True, stream=True
    )
    actual = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert "".join(e.token for entries in actual for e in entries) == choice.message.content
    assert all(entry.top_logprobs == [] for entries in actual for entry in entries)


@pytest.mark.parametrize("effort", ["none", "high"])
@pytest.mark.parametrize("text", ["<b>Paris</b>", "<", "\nParis", "京都", "<think", "Paris."])
def test_logprobs_of_the_first_tokens(client, effort, text):
    """Text that might be a tag, and characters of several tokens, are held back with logprobs."""
    body = {"model": "demo", "messages": FRANCE, "reasoning_effort": effort, "logprobs": True}
    body["extra_body"] = {"structured_outputs": {"choice": [text]}}
    for as_token_ids in (False, True):
        body["extra_body"]["return_tokens_as_token_ids"] = as_token_ids
        (choice,) = client.chat.completions.create(**body).choices
        chunks = client.chat.completions.create(**body, stream=True)
        streamed = [e for c in chunks for e in getattr(c.choices[0].logprobs, "content", [])]
        content = choice.message.content
        assert content == (text.lstrip() if effort == "high" else text)
        for entries in (choice.logprobs.content, streamed):
            data = b"".join(bytes(entry.bytes) for entry in entries).decode()
            assert data.partition("<|")[0] == content  # with ids, EOS is included
            if not as_token_ids:
                assert "".join(entry.token for entry in entries) == content
    body["extra_body"] = {}
    unconstrained = client.chat.completions.create(**body).choices[0]
    entries = unconstrained.logprobs.content
    assert "".join(entry.token for entry in entries) == unconstrained.message.content


def test_n_choices(client):
    response = client.chat.completions.create(**PLAIN, n=3, temperature=8.0, seed=-5, max_tokens=8)
    assert [choice.index for choice in response.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in response.choices}) > 1
    chunks = list(
        client.chat.completions.create(
            **PLAIN, n=3, temperature=8.0, seed=-5, max_tokens=8, stream=True
        )
    )
    for choice in response.choices:
        pieces = [c.choices[0] for c in chunks if c.choices[0].index == choice.index]
        assert "".join(p.delta.content or "" for p in pieces) == choice.message.content


def test_stop_string_and_max_tokens(client):
    stopped = client.chat.completions.create(**PLAIN, stop=[" France"])
    assert stopped.choices[0].message.content == "The capital of"
    assert stopped.choices[0].finish_reason == "stop"
    truncated = client.chat.completions.create(**PLAIN, max_completion_tokens=2)
    assert truncated.choices[0].finish_reason == "length"
    assert truncated.usage.completion_tokens == 2


def test_max_tokens_is_clamped_to_the_context_length(client):
    response = client.chat.completions.create(**PLAIN, max_tokens=32_000)
    assert response.choices[0].finish_reason == "stop"


def test_concurrent_requests_match_sequential_ones(client, async_client):
    def body(seed):
        return {**PLAIN, "temperature": 1.5, "seed": seed, "max_tokens": 24}

    sequential = [client.chat.completions.create(**body(seed)) for seed in range(8)]

    async def ask_all():
        return await asyncio.gather(
            *(async_client.chat.completions.create(**body(seed)) for seed in range(8))
        )

    concurrent = asyncio.run(ask_all())
    contents = [
        [r.choices[0].message.content for r in responses] for responses in (sequential, concurrent)
    ]
    assert contents[0] == contents[1]


def test_content_parts_and_developer_message(client):
    parts = [
        {"type": "text", "text": "What is the capital "},
        {"type": "text", "text": "of France?"},
    ]
    response = client.chat.completions.create(
        model="demo",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": parts},
        ],
        reasoning_effort="none",
    )
    assert "Paris" in response.choices[0].message.content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "messages must have 1 or more elements, got 0"),
        ({"messages": None}, "messages must be a list, got null"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"temperature": -1}, "temperature must be "),
        ({"stream_options": {}}, "stream_options requires stream"),
        ({"top_logprobs": 2}, "top_logprobs requires logprobs: true."),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be at most 20, got 21"),
        ({"tool_choice": "required"}, "tools is empty."),
        ({"tool_choice": {"type": "x"}}, "tool_choice.type must be "),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "g"}}],
                    },
                },
            },
            "tool_choice allows 'g', which is not in tools.",
        ),
        ({"stop": [1]}, "stop[0] must be a string, got 1"),
        ({"response_format": {"type": "json_schema"}}, "json_schema.schema is required"),
        ({"structured_outputs": {}}, "must have exactly one of"),
        ({"structured_outputs": {"regex": "("}}, "invalid regular expression: unclosed group"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "cannot be combined with"),
        ({"continue_final_message": True}, "only if it is an assistant message with text."),
        ({"continue_final_message": True, "add_generation_prompt": True}, "mutually exclusive"),
        ({"n": 2, "temperature": 0}, "n must be 1 at temperature 0.0, got 2"),
        ({"n": 1000}, "this server accepts at most"),
        ({"logit_bias": {"4096": 1}}, "token ids in logit_bias must be from 0 to 4095, got 4096"),
        ({"logit_bias": {"Paris": 1}}, "logit_bias keys must be token ids, got 'Paris'"),
        ({"messages": [{"role": "user"}]}, "messages[0] has no content"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content[0] has the type 'image_url'; this model accepts text only",
        ),
        (
            {"messages": [{"role": "user", "content": "word " * 3000}]},
            "3014 tokens > 2047 maximum; this model's maximum context length is 2048",
        ),
    ],
)
def test_invalid_request_is_400(client, change, message):
    with pytest.raises(openai.BadRequestError) as rejected:
        client.chat.completions.create(**PLAIN, extra_body=change)
    assert rejected.value.type == "invalid_request_error"
    assert message in rejected.value.message
    assert rejected.value.message.endswith(".")


@pytest.mark.parametrize("depth", [200, 440])
def test_deeply_nested_schema_is_400(client, depth):
    schema: dict[str, object] = {}
    for _ in range(depth):
        schema = {"items": schema}
    for change in (
        {"structured_outputs": {"json": schema}},
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": schema},
            }
        },
    ):
        with pytest.raises(openai.BadRequestError, match="nested more than 100 levels deep"):
            client.chat.completions.create(**PLAIN, extra_body=change)


def test_errors_are_json_for_any_body(server: RunningServer):
    url = "/v1/chat/completions"
    incomplete = b'{"messages": [{"role": "user", "content": "\\ud800"}], "\\ud800": 1}'
    long = b'{"seed": ' + b"9" * 5000 + b"}"
    for content in (b"", b"{", b"\xff", b"[" * 100_000, b"1", incomplete, long):
        response = httpx2.post(
            server.url + url, content=content, headers={"content-type": "application/json"}
        )
        assert response.status_code == 400, content[:20]
        assert response.json()["error"]["message"].endswith(".")
    assert server.get("/v1/nothing").json()["error"]["type"] == "not_found_error"
    assert server.get(url).status_code == 405


def test_unknown_model_is_404(client):
    with pytest.raises(openai.NotFoundError, match="this server serves 'demo'"):
        client.chat.completions.create(**{**PLAIN, "model": "gpt-4"})


def test_models(client):
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").id == "demo"


COLOUR = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}}
COLOUR |= {"required": ["colour"], "additionalProperties": False}
PAINT = {"type": "function", "function": {"name": "paint", "parameters": COLOUR}}


@pytest.mark.parametrize("effort", ["none", "high"])
def test_json_schema(client, effort):
    response_format = {"type": "json_schema", "json_schema": {"name": "colour", "schema": COLOUR}}
    response = client.chat.completions.create(
        model="demo", messages=FRANCE, reasoning_effort=effort, response_format=response_format
    )
    assert json.loads(response.choices[0].message.content)["colour"] in ("red", "blue")


def test_structured_choice(client):
    body = {"structured_outputs": {"choice": ["tea", "coffee"]}}
    response = client.chat.completions.create(**PLAIN, extra_body=body)
    assert response.choices[0].message.content in ("tea", "coffee")


PAINT_REFERENCE = {"type": "function", "function": {"name": "paint"}}
ALLOWED_TOOLS = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [PAINT_REFERENCE]},
}
OTHER = {"type": "function", "function": {"name": "sing", "parameters": {"type": "object"}}}


def test_allowed_tools(client):
    def prompt_tokens(tools, mode):
        choice = {
            "type": "allowed_tools",
            "allowed_tools": {"mode": mode, "tools": [PAINT_REFERENCE]},
        }
        body = {**PLAIN, "tools": tools, "tool_choice": choice, "max_tokens": 80}
        response = client.chat.completions.create(**body, parallel_tool_calls=False)
        calls = response.choices[0].message.tool_calls or []
        assert mode == "auto" or [call.function.name for call in calls] == ["paint"]
        return response.usage.prompt_tokens

    counts = {
        prompt_tokens(tools, mode)
        for mode in ("auto", "required")
        for tools in ([OTHER, PAINT], [PAINT])
    }
    assert len(counts) == 1, "the prompt contains a tool outside allowed_tools"


@pytest.mark.parametrize("effort", ["none", "high"])
def test_continue_final_message(client, effort):
    messages = [*FRANCE, {"role": "assistant", "content": "The capital of"}]
    body = {"model": "demo", "messages": messages, "reasoning_effort": effort}
    extra = {"continue_final_message": True, "add_generation_prompt": False}
    response = client.chat.completions.create(**body, extra_body=extra)
    assert response.choices[0].message.content == " France is Paris."


@pytest.mark.parametrize("text", ["|", "<", "The capital of", "im_end", " a ", "\n\n"])
@pytest.mark.parametrize("trim", ["", " | trim"])
def test_continued_message_ends_the_prompt(text, trim):
    _, tokenizer = load_weights("demo")
    tokenizer.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content"
        + trim
        + " }}<|im_end|>\n{% endfor %}"
    )
    prompts = PromptRenderer(tokenizer)
    prompts.max_tokens = 1000
    messages = [*FRANCE, {"role": "assistant", "content": "x" + text}]
    prompt = prompts.encode_chat(messages, None, {}, continue_final_message=True)
    question = FRANCE[0]["content"]
    final = ("x" + text).rstrip() if trim else "x" + text
    assert prompts.decode(prompt.token_ids) == (
        f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{final}"
    )


def test_message_that_the_template_drops_cannot_be_continued():
    _, tokenizer = load_weights("demo")
    tokenizer.chat_template = "{{ messages[0].content }}"
    messages = [*FRANCE, {"role": "assistant", "content": "The"}]
    with pytest.raises(ApiError, match="can be continued only if"):
        PromptRenderer(tokenizer).encode_chat(messages, None, {}, continue_final_message=True)


def test_optional_tool_calls_are_constrained():
    body = {"messages": FRANCE, "tools": [PAINT, OTHER]}
    response_format = ChatCompletionRequest(**body).constraint()
    assert (response_format.choice, len(response_format.tools), response_format.parallel) == (
        "auto",
        2,
        True,
    )
    assert not ChatCompletionRequest(**body, parallel_tool_calls=False).constraint().parallel
    assert ChatCompletionRequest(**body, tool_choice="none").constraint() is None
    assert ChatCompletionRequest(**body, ignore_eos=True).constraint() is None


def test_invalid_schema_is_rejected_only_for_required_calls(server):
    schema = {"type": "object", "properties": {"a": {"type": "any"}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    body = {**PLAIN, "tools": [OTHER, tool]}
    response = server.post("/v1/chat/completions", body).json()
    assert "Paris" in response["choices"][0]["message"]["content"]
    reason = "the schema of the tool 'look' is rejected at '/properties/a': 'any' is not a JSON "
    reason += "Schema type."
    server.wait_for(f"tool calls are not constrained to their schemas: {reason}")
    rejected = server.post("/v1/chat/completions", {**body, "tool_choice": "required"})
    assert rejected.status_code == 400
    assert rejected.json()["error"]["message"] == reason


def test_control_characters_of_a_schema_are_escaped_in_the_log(server):
    name = "\x1b]0;evil\x07\nforged"
    parameters = {"type": "object", "properties": {name: {"type": "any"}}}
    tool = {"type": "function", "function": {"name": "look", "parameters": parameters}}
    server.post("/v1/chat/completions", {**PLAIN, "tools": [tool]})
    server.wait_for(r"not constrained to their schemas: .*\\x1b\]0;evil\\x07\\nforged")


def test_refusal_part(client):
    parts = [{"type": "refusal", "refusal": "No."}]
    messages = [*FRANCE, {"role": "assistant", "content": parts}, *FRANCE]
    response = client.chat.completions.create(**{**PLAIN, "messages": messages})
    assert "Paris" in response.choices[0].message.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "paint"}}, ALLOWED_TOOLS]
)
def test_required_tool_call(client, choice, stream):
    body = {**PLAIN, "tools": [PAINT], "tool_choice": choice, "parallel_tool_calls": False}
    if stream:
        deltas = [c.choices[0] for c in client.chat.completions.create(**body, stream=True)]
        calls = [delta.delta.tool_calls[0] for delta in deltas if delta.delta.tool_calls]
        assert (calls[0].index, calls[0].type, calls[0].function.name) == (0, "function", "paint")
        arguments = "".join(call.function.arguments for call in calls)
        reason = deltas[-1].finish_reason
    else:
        (made,) = client.chat.completions.create(**body).choices
        (call,) = made.message.tool_calls
        assert call.function.name == "paint"
        arguments, reason = call.function.arguments, made.finish_reason
    assert json.loads(arguments)["colour"] in ("red", "blue")
    assert reason == "tool_calls"
