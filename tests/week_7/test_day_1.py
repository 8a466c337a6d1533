"""Week 7, day 1, optional: validated tool calls and the agent loop."""

import sys
from typing import Any

import pytest

from tests.support import assert_equal
from tests.week_7.support import assert_complete, assert_messages, error_of
from tiny_llm import UserError
from tiny_llm.agent import Agent, Message, ScriptedModel, Tool, ToolError, assistant
from tiny_llm.agent.tools import parse_arguments, run_call

PATH = {"type": "string"}
LINES = {"type": "array", "items": {"type": "integer", "minimum": 1}}
SCHEMA = {"properties": {"path": PATH, "lines": LINES}, "required": ["path"]}
READ = Tool("read", "Reads a file.", SCHEMA, lambda path, lines=(): f"{path} {list(lines)}")


def failing(name: str, error: Exception) -> Tool:
    def fail() -> str:
        raise error

    return Tool(name, "", {"properties": {}}, fail)


TOOLS = [
    READ,
    failing("wrong", ToolError("the text does not occur")),
    failing("missing", FileNotFoundError(2, "No such file", "a.txt")),
    failing("broken", KeyError("internal error")),
    failing("bad", ValueError("bad")),
]
BY_NAME = {tool.name: tool for tool in TOOLS}


def call(name: str, arguments: Any, number: int = 7) -> Message:
    message: Message = assistant(None, (name, arguments), turn=number)["tool_calls"][0]
    return message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"path": "a.txt"}', {"path": "a.txt"}),
        ('{"lines": [1, 20], "path": ""}', {"path": "", "lines": [1, 20]}),
        (' {"path": "//ü\\n"}\n', {"path": "//ü\n"}),
    ],
)
def test_task_1_valid_arguments(text, expected):
    assert_equal(parse_arguments(READ, text), expected)


def test_task_1_empty_text_means_no_arguments():
    assert_equal(parse_arguments(BY_NAME["wrong"], ""), {}, "an empty object")
    message = error_of(parse_arguments, BY_NAME["wrong"], "null")
    assert "not of type 'object'" in message, f"null: expected a violation, got: {message}"


INVALID_JSON = {
    "no end": '{"path": "a.txt"',
    "no JSON": "path=a.txt",
    "quotes": "{'path': 1}",
    "newline": '{"path": "a\n"}',
    "200,000 brackets": "[" * 200_000,
    "5,000 digits": f'{{"n": {"9" * 5000}}}',
    "NaN": '{"path": NaN}',
    "-Infinity": '{"path": -Infinity}',
}


@pytest.mark.parametrize("text", INVALID_JSON.values(), ids=INVALID_JSON)
def test_task_1_invalid_json(text):
    message = error_of(parse_arguments, READ, text)
    assert "read" in message, f"expected the tool's name in the message, got: {message}"
    assert "JSON" in message, f"expected 'not JSON' in the message, got: {message}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "$: 'path' is a required property"),
        ('{"path": 3}', "$.path: 3 is not of type 'string'"),
        ('{"path": "a", "lines": [4, 0]}', "$.lines[1]: 0 is less than the minimum of 1"),
        ('{"path": "a", "lines": ["3"]}', "$.lines[0]: '3' is not of type 'integer'"),
        ('{"path": "a", "line": 4}', "'line' was unexpected"),
        ('["a.txt"]', "$: ['a.txt'] is not of type 'object'"),
    ],
)
def test_task_1_violations_have_path_and_reason(text, expected):
    message = error_of(parse_arguments, READ, text)
    assert expected in message, f"expected '{expected}' in the message, got: {message}"
    assert "read" in message, f"expected the tool's name in the message, got: {message}"


def test_task_1_deep_nesting_and_many_violations():
    """Covers depths that can be parsed but are too deep to validate."""
    limit = sys.getrecursionlimit()
    for depth in range(limit - 200, limit):
        message = error_of(parse_arguments, READ, f'{{"path": {"[" * depth}{"]" * depth}}}')
        assert "read" in message, f"expected the tool's name in the message, got: {message}"
    message = error_of(parse_arguments, READ, '{"path": "a", "lines": [0, -1, -2, -3, -4]}')
    count = message.count("minimum")
    assert count == 3, f"expected the first 3 of 5 violations, got {count}: {message}"
    assert message.count("; ") == 2, f"expected '; ' between violations, got: {message}"
    assert "lines[0]" in message, f"expected the first violation, lines[0], got: {message}"


def test_task_2_result():
    actual = run_call(call("read", {"lines": [3], "path": "a.txt"}), BY_NAME)
    expected = {"role": "tool", "tool_call_id": "call_7_0", "content": "a.txt [3]"}
    assert actual == expected, f"expected {expected}, got {actual}"
    actual = run_call(call("run", {}), {"run": Tool("run", "", {"properties": {}}, lambda: "")})
    assert actual["content"] == "", f"expected the empty result, got {actual['content']!r}"
    ran: list[str] = []
    tool = Tool("run", "", READ.parameters, lambda **arguments: str(ran.append("run")))
    run_call(call("run", {"path": 3}), {"run": tool})
    assert ran == [], "expected an invalid call not to run the function"


ALL_TOOLS = "read, wrong, missing, broken, bad"
MODEL_ERRORS = {
    "unknown tool": ("reed", {"path": "a.txt"}, ["reed", ALL_TOOLS]),
    "other case": ("READ", {"path": "a.txt"}, ["READ", ALL_TOOLS]),
    "a space": ("read ", {"path": "a.txt"}, [ALL_TOOLS]),
    "not JSON": ("read", '{"path', ["read", "JSON"]),
    "invalid": ("read", {"path": None}, ["$.path: None is not of type 'string'"]),
    "tool error": ("wrong", {}, ["the text does not occur"]),
    "operating system error": ("missing", {}, ["No such file", "a.txt"]),
    "value": ("bad", {}, ["error: bad"]),
}


@pytest.mark.parametrize(("name", "arguments", "expected"), MODEL_ERRORS.values(), ids=MODEL_ERRORS)
def test_task_2_model_errors_are_results(name, arguments, expected):
    try:
        actual = run_call(call(name, arguments), BY_NAME)
    except NotImplementedError:  # the task is not implemented
        raise
    except Exception as error:
        pytest.fail(f"expected a message for the model, got {type(error).__name__}: {error}")
    content = actual["content"]
    assert content.startswith("error: "), f"expected 'error: …', got {content!r}"
    assert actual == {"role": "tool", "tool_call_id": "call_7_0", "content": content}
    for text in expected:
        assert text in content, f"expected '{text}' in the result, got {content!r}"


@pytest.mark.parametrize("kind", [KeyError, TypeError, RecursionError, RuntimeError])
def test_task_2_internal_errors_are_not_results(kind):
    with pytest.raises(kind, match="internal error"):
        run_call(call("broken", {}), {"broken": failing("broken", kind("internal error"))})


def scripted_agent(script: Any, **options: Any) -> tuple[Agent, ScriptedModel]:
    model = ScriptedModel(script)
    return Agent(model, TOOLS, system_prompt="You read files.", **options), model


TASK = "Read a.txt and b.txt."


START = [
    {"role": "system", "content": "You read files."},
    {"role": "user", "content": TASK},
]


def test_task_3_calls_and_their_results():
    read = ("read", {"path": "a.txt"})
    message = assistant("Reading.", read, ("wrong", {}), ("read", "{"), read)
    agent, _ = scripted_agent([message])
    transcript = agent.start(TASK)
    agent.step(transcript)
    results = [run_call(each, BY_NAME) for each in message["tool_calls"]]
    expected = [*START, message, *results]
    assert_messages(transcript.messages, expected, "message and four results")
    assert_messages(transcript.context, expected, "context")
    state = transcript.steps, transcript.stop_reason
    assert_equal(state, (1, None), "one step and no stop reason")


@pytest.mark.parametrize("calls", [{}, {"tool_calls": []}, {"tool_calls": None}], ids=str)
def test_task_3_message_without_calls_is_the_answer(calls):
    message = {"role": "assistant", "content": "In b.txt.\n", **calls}
    agent, _ = scripted_agent([message])
    transcript = agent.start(TASK)
    try:
        agent.step(transcript)
    except (LookupError, TypeError) as error:
        pytest.fail(f"expected {message} to be an answer, got {type(error).__name__}: {error}")
    assert_messages(transcript.messages, [*START, message], "answer")
    assert_messages(transcript.context, [*START, message], "context")
    state = transcript.steps, transcript.stop_reason, transcript.answer
    expected = (1, "answer", "In b.txt.\n")
    assert state == expected, f"expected steps, stop reason and answer {expected}, got {state}"


@pytest.mark.parametrize("content", ["", None])
def test_task_3_empty_message_without_calls_is_the_answer(content):
    agent, _ = scripted_agent([{"role": "assistant", "content": content}])
    transcript = agent.start(TASK)
    agent.step(transcript)
    reason = "the stop reason 'answer', because asking again would give the same message"
    assert_equal(transcript.stop_reason, "answer", reason)


def test_task_3_failed_request_is_no_step():
    agent, _ = scripted_agent([])
    transcript = agent.start(TASK)
    with pytest.raises(UserError):
        agent.step(transcript)
    assert_equal(transcript.steps, 0, "no step, because the model has sent no message")


def test_task_3_request_to_the_model():
    seeds, definitions = [], []

    class Recorder(ScriptedModel):
        def complete(self, messages: Any, tools: Any, seed: int) -> Message:
            seeds.append(seed)
            definitions.append(list(tools))
            return super().complete(messages, tools, seed)

    model = Recorder([assistant(None, ("read", {"path": "a"})), assistant("Done.")])
    agent = Agent(model, TOOLS, compact=lambda messages: list(messages[-2:]))
    transcript = agent.start("Read.")
    for seed in (5, 6):
        agent.step(transcript, seed)
    assert_equal(seeds, [5, 6], "the steps' seeds")
    for given in definitions:
        names = [tool["function"]["name"] for tool in given]
        assert names == list(BY_NAME), f"expected the definitions of all tools, got {names}"
    assert_messages(model.prompts[1], transcript.messages[1:3], "compacted context")
    assert_equal(len(transcript.messages), 4, "4 messages in the transcript")


READ_A = assistant(None, ("read", {"path": "a.txt"}), turn=0)
READ_B = assistant(None, ("read", {"path": "b.txt"}), turn=1)
ANSWER = assistant("In b.txt.")


def test_task_4_runs_to_the_answer():
    agent, model = scripted_agent([READ_A, READ_B, ANSWER])
    transcript = agent.run(TASK)
    assert_equal(transcript.answer, "In b.txt.", "the answer 'In b.txt.'")
    assert transcript.steps == 3, f"expected 3 steps, got {transcript.steps}"
    assert_complete(transcript.messages)
    lengths = [len(prompt) for prompt in model.prompts]
    assert lengths == [2, 4, 6], f"expected prompts of 2, 4 and 6 messages, got {lengths}"


def test_task_4_model_corrects_itself():
    mistaken = assistant(None, ("read", {"file": "a.txt"}), turn=0)
    agent, _ = scripted_agent([mistaken, READ_B, ANSWER])
    transcript = agent.run(TASK)
    contents = [message["content"] for message in transcript.messages if message["role"] == "tool"]
    assert contents[0].startswith("error: "), f"expected an error first, got {contents}"
    assert contents[1:] == ["b.txt []"], f"expected a result after the correction, got {contents}"
    assert_equal(transcript.stop_reason, "answer", "the stop reason 'answer'")


@pytest.mark.parametrize(("limit", "reason"), [(2, "max_steps"), (3, "answer"), (9, "answer")])
def test_task_4_step_limit(limit, reason):
    agent, model = scripted_agent([READ_A, READ_B, ANSWER], max_steps=limit)
    transcript = agent.run(TASK)
    assert_equal(len(model.prompts), min(limit, 3), f"{min(limit, 3)} model requests")
    assert transcript.stop_reason == reason, f"expected {reason}, got {transcript.stop_reason}"
    assert_complete(transcript.messages)


def test_task_4_limits_and_empty_answers():
    agent, model = scripted_agent([READ_A, READ_B, ANSWER], max_steps=2)
    transcript = agent.start(TASK)
    agent.step(transcript)
    agent.resume(transcript)
    assert_equal(len(model.prompts), 2, "2 steps in total")
    agent, model = scripted_agent([assistant(""), ANSWER])
    agent.resume(agent.run(TASK))
    count = len(model.prompts)
    assert count == 1, f"expected no request after the answer '', got {count - 1}"


@pytest.mark.parametrize("limit", [1, 2])
def test_task_4_no_request_at_the_limit(limit):
    agent, model = scripted_agent([READ_A, READ_B, ANSWER], max_steps=limit)
    transcript = agent.start(TASK)
    agent.step(transcript)
    agent.step(transcript)
    agent.resume(transcript)
    count = len(model.prompts)
    assert count == 2, f"expected no request after 2 of {limit} steps, got {count - 2}"
    reason = transcript.stop_reason
    assert reason == "max_steps", f"expected the stop reason max_steps, got {reason}"


def test_task_4_higher_limit_continues_the_run():
    agent, model = scripted_agent([READ_A, READ_B, READ_B, ANSWER], max_steps=2)
    transcript = agent.run(TASK)
    agent.resume(transcript)
    count = len(model.prompts)
    assert count == 2, f"same limit: expected no further request, got {count - 2}"
    assert_equal(transcript.stop_reason, "max_steps", "the stop reason at the same limit")
    agent.max_steps = 4
    seen: list[str | None] = []
    agent.resume(transcript, 0, lambda now: seen.append(now.stop_reason))
    state = transcript.steps, transcript.stop_reason
    assert state == (4, "answer"), f"limit of 4: expected 4 steps and the answer, got {state}"
    assert seen == [None, "answer"], f"resumed run: expected no stop reason before it, got {seen}"
    assert_complete(transcript.messages)


def test_task_4_forks_and_finished_runs():
    agent, model = scripted_agent(
        lambda messages, seed: READ_A if len(messages) == 2 else assistant(f"{seed}")
    )
    start = agent.start(TASK)
    agent.step(start)
    answers = [agent.resume(start.fork(), seed).answer for seed in (3, 4)]
    assert answers == ["3", "4"], f"expected one answer per seed, got {answers}"
    assert start.stop_reason is None, "expected the forked transcript to be unchanged"
    finished = agent.resume(start)
    requests = len(model.prompts)
    assert agent.resume(finished) is finished, "expected the same transcript object"
    assert_equal(len(model.prompts) - requests, 0, "no request for a finished run")


@pytest.mark.parametrize(("limit", "last"), [(2, []), (3, [(3, "answer")])])
def test_task_4_callback_after_each_step(limit, last):
    agent, _ = scripted_agent([READ_A, READ_B, ANSWER], max_steps=limit)
    seen: list[tuple[int, str | None]] = []
    transcript = agent.start(TASK)
    agent.resume(transcript, 0, lambda now: seen.append((now.steps, now.stop_reason)))
    expected = [(1, None), (2, None), *last]
    assert seen == expected, f"expected (steps, stop reason) {expected}, got {seen}"
