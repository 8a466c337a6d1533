"""Helpers of Week 7's tests: error messages, conversations, assertions."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tiny_llm.agent import Message, ToolError, assistant


def error_of(function: Callable[..., Any], *arguments: Any) -> str:
    """Message of the `ToolError` that a function must raise."""
    try:
        value = function(*arguments)
    except ToolError as error:
        return str(error)
    except NotImplementedError:  # the task is not implemented
        raise
    except Exception as error:
        pytest.fail(f"expected a ToolError, got {type(error).__name__}: {error}")
    pytest.fail(f"expected a ToolError, got {value!r}")


def assert_messages(actual: Sequence[Message], expected: Sequence[Message], what: str) -> None:
    """Asserts equal conversations; reports the first message that differs."""
    for index, (one, other) in enumerate(zip(actual, expected, strict=False)):
        assert one == other, f"{what}: expected messages[{index}] to be {other}, got {one}"
    count = f"{what}: expected {len(expected)} messages, got {len(actual)}"
    assert len(actual) == len(expected), count


def assert_complete(messages: Sequence[Message]) -> None:
    """Asserts that each tool call has its result, in the order of the calls."""
    ids: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            expected = ids.pop(0) if ids else None
            given = message.get("tool_call_id")
            assert given == expected, (
                f"messages[{index}]: expected the result of call {expected}, got that of {given}"
            )
        else:
            assert not ids, f"messages[{index}]: expected the result of call {ids[0]}, got none"
            ids = [call["id"] for call in message.get("tool_calls") or []]


def conversation(results: Sequence[int], calls: int = 1) -> list[Message]:
    """A user's task and one turn per entry of `results`.

    A turn has `calls` tool calls, each with a result of the entry's length.
    """
    messages: list[Message] = [
        {"role": "system", "content": "You read files."},
        {"role": "user", "content": "Which file has the error?"},
    ]
    for turn, length in enumerate(results):
        names = [("read_file", {"path": f"{turn}.{call}.txt"}) for call in range(calls)]
        message = assistant(None, *names, turn=turn)
        messages.append(message)
        for call in message["tool_calls"]:
            text = f"{call['id']} " + "x" * (length - len(call["id"]) - 1)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    return messages


def total_is_12(workspace: Path) -> bool:
    return int((workspace / "total.txt").read_text()) == 12
