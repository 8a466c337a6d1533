"""Response store: `previous_response_id`, `item_reference`, eviction."""

import openai
import pytest

from tests.server.running_server import RunningServer
from tiny_llm.server.http.errors import ApiError
from tiny_llm.server.openai import response_store
from tiny_llm.server.openai.response_store import ResponseStore

QUESTION = "What is the capital of France?"
QUESTION_ITEM = {"role": "user", "content": QUESTION}
BODY = {"model": "demo", "reasoning": {"effort": "none"}, "max_output_tokens": 60}
TOOL = {
    "type": "function",
    "name": "capital",
    "parameters": {"type": "object", "properties": {"of": {"const": "France"}}, "required": ["of"]},
}


@pytest.fixture(scope="module")
def storing_client():
    with RunningServer("--response-store", "3") as running:
        yield running.openai


def count(client, **body) -> int:
    body = {"model": "demo", "reasoning": {"effort": "none"}, **body}
    return client.responses.input_tokens.count(**body).input_tokens


def as_inputs(items) -> list[dict]:
    return [item.model_dump(exclude_none=True) for item in items]


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_previous_response_continues_the_conversation(storing_client, stream):
    def create(**body):
        response = storing_client.responses.create(**BODY, **body, stream=stream)
        return list(response)[-1].response if stream else response

    first = create(input=QUESTION)
    assert first.store
    second = create(input="And of Italy?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    follow_up = {"role": "user", "content": "And of Italy?"}
    history = [QUESTION_ITEM, *as_inputs(first.output), follow_up]
    assert second.usage.input_tokens == count(storing_client, input=history)
    assert second.usage.input_tokens > first.usage.input_tokens
    third = create(input="Why?", previous_response_id=second.id)
    history += [*as_inputs(second.output), {"role": "user", "content": "Why?"}]
    assert third.usage.input_tokens == count(storing_client, input=history)


def test_tool_loop_with_previous_response(storing_client):
    first = storing_client.responses.create(
        **BODY, input=QUESTION, tools=[TOOL], tool_choice="required", parallel_tool_calls=False
    )
    call = next(item for item in first.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Paris"}
    more = {"tools": [TOOL], "instructions": "Be brief."}
    second = storing_client.responses.create(
        **BODY, **more, input=[result], previous_response_id=first.id
    )
    history = [QUESTION_ITEM, *as_inputs(first.output), result]
    assert second.usage.input_tokens == count(storing_client, input=history, **more)


def test_item_references(storing_client):
    """Items of earlier turns may be sent as references, as the AI SDK does."""
    first = storing_client.responses.create(**BODY, input=QUESTION)
    items = [{"type": "item_reference", "id": item.id} for item in first.output]
    body = {"input": [QUESTION_ITEM, *items, QUESTION_ITEM]}
    expected = count(storing_client, input=[QUESTION_ITEM, *as_inputs(first.output), QUESTION_ITEM])
    assert count(storing_client, **body) == expected
    for _ in range(5):  # items stay available while a stored response references them
        storing_client.responses.create(**BODY, **body)
    assert count(storing_client, **body) == expected


def test_responses_are_not_stored_on_request(storing_client):
    response = storing_client.responses.create(**BODY, input=QUESTION, store=False)
    assert response.store is False
    with pytest.raises(openai.BadRequestError, match=f"'{response.id}' is not stored"):
        storing_client.responses.create(**BODY, input="Why?", previous_response_id=response.id)
    reference = {"type": "item_reference", "id": response.output[0].id}
    with pytest.raises(openai.NotFoundError, match=r"input\[0\] references the item 'msg_"):
        storing_client.responses.create(**BODY, input=[reference])


def test_oldest_response_is_evicted(storing_client):
    ids = [storing_client.responses.create(**BODY, input=QUESTION).id for _ in range(3)]
    # Referencing the oldest response makes it the most recently used one.
    storing_client.responses.create(**BODY, input="Why?", previous_response_id=ids[0])
    with pytest.raises(openai.BadRequestError) as error:
        storing_client.responses.create(**BODY, input="Why?", previous_response_id=ids[1])
    assert error.value.code == "previous_response_not_found"
    storing_client.responses.create(**BODY, input="Why?", previous_response_id=ids[0])


def test_errors_name_the_flag(client):
    response = client.responses.create(**BODY, input=QUESTION, store=True)
    assert response.store is False
    for body in (
        {"input": "Why?", "previous_response_id": response.id},
        {"input": [{"type": "item_reference", "id": response.output[0].id}]},
    ):
        with pytest.raises(
            openai.BadRequestError, match="start the server with --response-store N"
        ):
            client.responses.create(**BODY, **body)


def test_error_indices_count_only_items_of_the_request(storing_client):
    first = storing_client.responses.create(**BODY, input=QUESTION)
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]\.role must be"):
        storing_client.responses.create(
            **BODY, input=[{"role": "x"}], previous_response_id=first.id
        )


def test_store_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(response_store, "MAX_STORED_BYTES", 1000)
    store = ResponseStore(100)
    for number in range(10):
        item = {"type": "message", "id": f"msg_{number}", "content": "x" * 300}
        store.add(f"resp_{number}", store.resolve("a", None), [item])
    for number in range(8):
        with pytest.raises(ApiError, match="is not stored"):
            store.resolve("a", f"resp_{number}")
        with pytest.raises(ApiError, match="is not stored"):
            store.resolve([{"type": "item_reference", "id": f"msg_{number}"}], None)
    assert len(store.resolve("a", "resp_9").items()) == 3
    huge = {"type": "message", "content": "x" * 2000}
    store.add("resp_huge", store.resolve("a", None), [huge])
    with pytest.raises(ApiError, match="is not stored"):
        store.resolve("a", "resp_huge")


def test_chain_is_bounded_in_memory(monkeypatch):
    monkeypatch.setattr(response_store, "MAX_STORED_BYTES", 10**6)
    store, previous = ResponseStore(10**6), None
    for number in range(100):
        text = {"type": "message", "content": "x" * 20_000}
        conversation = store.resolve([text], previous, 10**6)
        previous = f"resp_{number}"
        store.add(previous, conversation, [{"type": "message", "id": f"msg_{number}"}])
        held = {id(item): item for items in store._responses.values() for item in items}
        assert sum(item.num_bytes for item in held.values()) <= store._num_bytes <= 10**6
        assert len(store._items) <= len(held)
        if number == 44:
            break
    with pytest.raises(ApiError, match="start a new conversation, or send a shorter one as input"):
        store.resolve("a", previous, 900_000)


def test_references_are_bounded_before_they_are_resolved():
    store = ResponseStore(10)
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": "x" * 400_000}
    store.add("resp_1", store.resolve("a", None), [item])
    reference = {"type": "item_reference", "id": "msg_1"}
    assert len(store.resolve([reference] * 10, None, 2**22).items()) == 10
    with pytest.raises(ApiError, match="have 400263000 bytes, but a request may have 4194304"):
        store.resolve([reference] * 1000, None, 2**22)


def test_ids_of_clients_are_ignored(storing_client):
    """Clients may choose equal ids, and would get each other's items."""
    item = {"type": "message", "id": "msg_mine", "role": "user", "content": QUESTION}
    response = storing_client.responses.create(**BODY, input=[item])
    reference = {"type": "item_reference", "id": "msg_mine"}
    with pytest.raises(openai.NotFoundError, match="'msg_mine', which is not stored"):
        storing_client.responses.create(**BODY, input=[reference])
    storing_client.responses.create(**BODY, input="Why?", previous_response_id=response.id)


def test_long_chain_is_rejected(storing_client):
    """Ignored items count as well."""
    body = {**BODY, "input": [{"type": "unknown", "data": "x" * 10**6}, QUESTION_ITEM]}
    previous = None
    for _ in range(5):
        previous = storing_client.responses.create(**body, previous_response_id=previous).id
    with pytest.raises(openai.BadRequestError, match="a request may have 4194304; start a new"):
        storing_client.responses.create(**body, previous_response_id=previous)
