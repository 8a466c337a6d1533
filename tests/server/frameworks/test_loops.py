r"""Agent frameworks on a scripted model, in each protocol, streaming or not.

Frameworks that are not installed are skipped. Their client libraries conflict, so they run in a
separate environment:

    uv venv /tmp/fw
    uv pip install --python /tmp/fw openai-agents 'pydantic-ai-slim[openai,anthropic]' \
        'anthropic<2' langchain langchain-openai langchain-anthropic instructor 'smolagents[openai]'
    npm install --prefix /tmp/fwjs ai zod @ai-sdk/openai @ai-sdk/openai-compatible @ai-sdk/anthropic
    TINY_LLM_FRAMEWORKS_PYTHON=/tmp/fw/bin/python TINY_LLM_FRAMEWORKS_NODE=/tmp/fwjs \
        pytest tests/server/frameworks
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.running_server import RunningServer
from tests.server.scripted_model import tool_call, write_checkpoint

HERE = Path(__file__).parent
PYTHON = os.environ.get("TINY_LLM_FRAMEWORKS_PYTHON", sys.executable)
NODE_PREFIX = Path(os.environ.get("TINY_LLM_FRAMEWORKS_NODE", "/there-is-no-prefix"))

REPORT = {"city": "Paris", "weather": "sunny, 21 °C", "population": 2_100_000}
OUTCOME = re.compile(r'\{"(calls|error)"')
CALLS = [["get_weather", "Paris"], ["get_population", "Paris"]]

REASONING = "<think>\nI need {}.\n</think>\n\n"
WEATHER = REASONING.format("the weather") + tool_call("get_weather", city="Paris")
POPULATION = REASONING.format("the population") + tool_call("get_population", city="Paris")
ANSWER = json.dumps(REPORT, ensure_ascii=False)


def script(answer: str) -> list[str]:
    """Model outputs of a conversation: two tool calls, then the final answer."""
    return [WEATHER, POPULATION, REASONING.format("no more") + answer]


def code_output(text: str) -> str:
    return f"Thought: one step.\n<code>\n{text}\n</code>"


FINAL_ANSWER = tool_call("final_answer", answer=ANSWER)
CITY = json.dumps({"city": "Paris"})
# (marker, model outputs). The marker is text that only prompts of one framework and mode contain.
SCRIPT = [
    ('"final_result"', script(tool_call("final_result", **REPORT))),  # Pydantic AI
    ('"name": "Report"', script(tool_call("Report", **REPORT))),  # LangChain, instructor
    ('"name": "PartialReport"', script(tool_call("PartialReport", **REPORT))),
    (
        "<code>",
        [
            code_output('print(get_weather(city="Paris"))'),
            code_output('print(get_population(city="Paris"))'),
            code_output(f"final_answer({REPORT})"),
        ],
    ),
    ('"final_answer"', [WEATHER, POPULATION, FINAL_ANSWER]),  # smolagents
    ('"name": "Weather"', [tool_call("Weather", city="Paris")]),  # instructor
    ('"name": "Population"', [tool_call("Population", city="Paris")]),
    ("# Tools", script(ANSWER)),
    ("", [CITY, CITY, ANSWER]),  # instructor's cases without tools, which use only response formats
]


# Variants of each framework's loop, by protocol; each also runs with "-streamed".
OUTPUT_MODES = ("tool", "native", "prompted")
VARIANTS = {
    "agents": dict.fromkeys(("chat", "responses"), ("",)),
    "pydantic_ai": dict.fromkeys(("chat", "responses", "messages"), OUTPUT_MODES),
    "langchain": dict.fromkeys(("chat", "responses", "messages"), OUTPUT_MODES[:2]),
    "instructor": {
        "chat": ("tools", "json_schema"),
        "responses": ("responses_tools",),
        "messages": ("anthropic_tools",),
    },
    "smolagents": {"chat": ("tools", "code")},
}
CASES = {
    framework: [
        f"{framework}:{protocol}:{variant}{end}"
        for protocol, variants in protocols.items()
        for variant in variants
        for end in ("", "-streamed")
    ]
    for framework, protocols in VARIANTS.items()
}
AI_SDK_CASES = [
    f"{provider}:{streamed}"
    for provider in ("chat", "compatible", "responses", "stored", "messages")
    for streamed in ("", "streamed")
]


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("scripted")
    (folder / "script.json").write_text(json.dumps(SCRIPT))
    checkpoint = write_checkpoint(folder / "demo", 32_768)
    # Some frameworks enable structured output only for Claude models that support it.
    names = ("--served-model-name", "demo", "claude-sonnet-4-5")
    flags = ("--model", str(checkpoint), *names, "--response-store", "100")
    running = RunningServer(*flags, script=folder / "script.json")
    yield running
    running.stop()


def is_installed(module: str) -> bool:
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([PYTHON, "-c", code], check=False).returncode == 0


def run_loops(command: list[str], cases: list[str]) -> None:
    """Runs all cases in one process, because importing frameworks takes seconds."""
    process = subprocess.run(
        [*command, *cases], capture_output=True, text=True, timeout=600, check=False
    )
    outcomes = [json.loads(line) for line in process.stdout.splitlines() if OUTCOME.match(line)]
    assert len(outcomes) == len(cases), process.stderr[-4000:]
    expected = {"calls": CALLS, "answer": REPORT}
    failed = {
        case: outcome for case, outcome in zip(cases, outcomes, strict=True) if outcome != expected
    }
    assert not failed, "\n".join(
        f"{case}: {outcome.get('error', outcome)}" for case, outcome in failed.items()
    )


@pytest.mark.slow
@pytest.mark.parametrize("framework", CASES)
def test_python_framework(scripted, framework):
    if not is_installed(framework):
        pytest.skip(
            f"{PYTHON} lacks {framework}; set TINY_LLM_FRAMEWORKS_PYTHON to a Python that has it"
        )
    run_loops([PYTHON, str(HERE / "loops.py"), scripted.url], CASES[framework])


@pytest.mark.slow
def test_ai_sdk(scripted):
    if shutil.which("node") is None or not (NODE_PREFIX / "node_modules" / "ai").is_dir():
        pytest.skip("TINY_LLM_FRAMEWORKS_NODE does not name an npm prefix with the AI SDK")
    run_loops(["node", str(HERE / "ai_sdk.mjs"), str(NODE_PREFIX), scripted.url], AI_SDK_CASES)
