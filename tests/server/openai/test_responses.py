"""Responses API, tested with OpenAI's client."""

import pytest

from tiny_llm.server.openai.responses_schema import to_chat_messages

BODY = {"model": "demo", "input": "What is the capital of France?", "reasoning": {"effort": "none"}}
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}


@pytest.mark.parametrize("effort", ["none", "high"])
def test_stream_events_match_the_final_response(client, effort):
    events = list(client.responses.create(**{**BODY, "reasoning": {"effort": effort}}, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "completed"]
    final = events[-1].response
    assert (final.status, final.store, final.text.format.type) == ("completed", False, "text")
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert done == final.output
    deltas = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert deltas == final.output_text == "The capital of France is Paris."


def test_output_items_can_be_sent_back(client):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
        {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "b3RoZXJz"},
        {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        {"type": "from_the_future", "id": "x"},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    tools = [TOOL, {"type": "web_search"}, {"type": "local_shell"}]
    response = client.responses.create(
        **{**BODY, "input": items}, tools=tools, include=["reasoning.encrypted_content"], store=True
    )
    assert response.status == "completed"
    assert [tool.name for tool in response.tools] == ["weather"]
    assert response.store is False


def test_encrypted_content_round_trip(client):
    body = {**BODY, "reasoning": {"effort": "high"}, "include": ["reasoning.encrypted_content"]}
    thought, _ = client.responses.create(**body).output
    *_, last = client.responses.create(**body, stream=True)
    assert last.response.output[0].encrypted_content == thought.encrypted_content
    sent = {"type": "reasoning", "id": "rs", "summary": []}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    for fields in (
        {"encrypted_content": thought.encrypted_content},
        {"encrypted_content": None, "content": thought.to_dict()["content"]},
    ):
        messages = to_chat_messages([{**sent, **fields}, call], None)
        assert messages[0]["reasoning_content"] == thought.content[0].text
    foreign = {**sent, "encrypted_content": "of another server"}
    assert "reasoning_content" not in to_chat_messages([foreign, call], None)[0]


def test_text_and_following_calls_are_one_message():
    assistant = {"role": "assistant", "content": "Let me see."}
    calls = [
        {"type": "function_call", "call_id": name, "name": name, "arguments": "{}"} for name in "fg"
    ]
    user = {"role": "user", "content": "Weather?"}
    messages = to_chat_messages([user, assistant, *calls], None)
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["content"] == "Let me see."
    assert [call["function"]["name"] for call in messages[1]["tool_calls"]] == ["f", "g"]


@pytest.mark.parametrize("effort", ["none", "high"])
def test_logprobs(client, effort):
    body = {**BODY, "reasoning": {"effort": effort}, "top_logprobs": 2}
    *events, last = client.responses.create(**body, stream=True)
    (part,) = last.response.output[-1].content
    assert "".join(entry.token for entry in part.logprobs) == part.text
    assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
    streamed = [
        entry for e in events if e.type == "response.output_text.delta" for entry in e.logprobs
    ]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in part.logprobs]
    full = client.responses.create(**BODY, include=["message.output_text.logprobs"])
    assert full.output[-1].content[0].logprobs[0].top_logprobs == []
