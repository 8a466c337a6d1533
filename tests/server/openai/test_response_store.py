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


def create(client, given=QUESTION, previous=None, **more):
    return client.responses.create(**BODY, input=given, previous_response_id=previous, **more)


def count(client, given, **body) -> int:
    body = {"model": "demo", "reasoning": {"effort": "none"}, **body}
    return client.responses.input_tokens.count(**body, input=given).input_tokens


def as_inputs(items) -> list[dict]:
    return [item.model_dump(exclude_none=True) for item in items]


def reference(item_id):
    return {"type": "item_reference", "id": item_id}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_previous_response_continues_the_conversation(storing_client, stream):
    history, previous, num_tokens = [], None, 0
    for text in (QUESTION, "And of Italy?", "Why?"):
        response = create(storing_client, text, previous, stream=stream)
        response = list(response)[-1].response if stream else response
        assert (response.store, response.previous_response_id) == (True, previous)
        history.append({"role": "user", "content": text})
        assert response.usage.input_tokens == count(storing_client, history) > num_tokens
        history += as_inputs(response.output)
        previous, num_tokens = response.id, response.usage.input_tokens


def test_tool_loop_with_previous_response(storing_client):
    required = {"tool_choice": "required", "parallel_tool_calls": False}
    first = create(storing_client, tools=[TOOL], **required)
    call = next(item for item in first.output if item.type == "function_call")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Paris"}
    more = {"tools": [TOOL], "instructions": "Be brief."}
    second = create(storing_client, [result], first.id, **more)
    history = [QUESTION_ITEM, *as_inputs(first.output), result]
    assert second.usage.input_tokens == count(storing_client, history, **more)


def test_item_references(storing_client):
    """Items of earlier turns may be sent as references, as the AI SDK does."""
    first = create(storing_client)
    references = [reference(item.id) for item in first.output]
    given = [QUESTION_ITEM, *references, QUESTION_ITEM]
    expected = count(storing_client, [QUESTION_ITEM, *as_inputs(first.output), QUESTION_ITEM])
    assert count(storing_client, given) == expected
    for _ in range(5):  # items stay available while a stored response references them
        create(storing_client, given)
    assert count(storing_client, given) == expected


def test_responses_are_not_stored_on_request(storing_client):
    response = create(storing_client, store=False)
    assert response.store is False
    with pytest.raises(openai.BadRequestError, match=f"'{response.id}' is not stored"):
        create(storing_client, "Why?", response.id)
    with pytest.raises(openai.NotFoundError, match=r"input\[0\] references the item 'msg_"):
        create(storing_client, [reference(response.output[0].id)])


def test_oldest_response_is_evicted(storing_client):
    ids = [create(storing_client).id for _ in range(3)]
    # Referencing the oldest response makes it the most recently used one.
    create(storing_client, "Why?", ids[0])
    with pytest.raises(openai.BadRequestError) as error:
        create(storing_client, "Why?", ids[1])
    assert error.value.code == "previous_response_not_found"
    create(storing_client, "Why?", ids[0])


def test_errors_name_the_flag(client):
    response = create(client, store=True)
    assert response.store is False
    for given, previous in (("Why?", response.id), ([reference(response.output[0].id)], None)):
        with pytest.raises(openai.BadRequestError, match="start the server with --response-store"):
            create(client, given, previous)


def test_error_indices_count_only_items_of_the_request(storing_client):
    first = create(storing_client)
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]\.role must be"):
        create(storing_client, [{"role": "x"}], first.id)


def test_ids_of_clients_are_ignored(storing_client):
    """Clients may choose equal ids, and would get each other's items."""
    response = create(storing_client, [{**QUESTION_ITEM, "type": "message", "id": "msg_mine"}])
    with pytest.raises(openai.NotFoundError, match="'msg_mine', which is not stored"):
        create(storing_client, [reference("msg_mine")])
    create(storing_client, "Why?", response.id)


def test_long_chain_is_rejected(storing_client):
    """Ignored items count as well."""
    given = [{"type": "unknown", "data": "x" * 10**6}, QUESTION_ITEM]
    previous = None
    for _ in range(5):
        previous = create(storing_client, given, previous).id
    with pytest.raises(openai.BadRequestError, match="a request may have 4194304; start a new"):
        create(storing_client, given, previous)


def test_store_is_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(response_store, "MAX_STORED_BYTES", 1000)
    store = ResponseStore(100)
    for number in range(10):
        item = {"type": "message", "id": f"msg_{number}", "content": "x" * 300}
        store.add(f"resp_{number}", store.resolve("a", None), [item])
    assert len(store.resolve("a", "resp_9").items()) == 3
    lost = [("a", f"resp_{n}") for n in range(8)] + [
        ([reference(f"msg_{n}")], None) for n in range(8)
    ]
    store.add("resp_huge", store.resolve("a", None), [{"type": "message", "content": "x" * 2000}])
    for given, previous in (*lost, ("a", "resp_huge")):
        with pytest.raises(ApiError, match="is not stored"):
            store.resolve(given, previous)


def test_chain_is_bounded_in_memory(monkeypatch):
    monkeypatch.setattr(response_store, "MAX_STORED_BYTES", 10**6)
    store, previous = ResponseStore(10**6), None
    for number in range(45):
        text = {"type": "message", "content": "x" * 20_000}
        conversation = store.resolve([text], previous, 10**6)
        previous = f"resp_{number}"
        store.add(previous, conversation, [{"type": "message", "id": f"msg_{number}"}])
        held = {id(item): item for items in store._responses.values() for item in items}
        assert sum(item.num_bytes for item in held.values()) <= store._num_bytes <= 10**6
        assert len(store._items) <= len(held)
    with pytest.raises(ApiError, match="start a new conversation, or send a shorter one as input"):
        store.resolve("a", previous, 900_000)


def test_references_are_bounded_before_they_are_resolved():
    store = ResponseStore(10)
    item = {"type": "message", "id": "msg_1", "role": "assistant", "content": "x" * 400_000}
    store.add("resp_1", store.resolve("a", None), [item])
    assert len(store.resolve([reference("msg_1")] * 10, None, 2**22).items()) == 10
    with pytest.raises(ApiError, match="have 400263000 bytes, but a request may have 4194304"):
        store.resolve([reference("msg_1")] * 1000, None, 2**22)
