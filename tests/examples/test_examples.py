"""Programs in `examples/`, each in a subprocess with the demo model."""

import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def command(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]


def run(name: str, *arguments: str, stdin: str = "") -> list[str]:
    result = subprocess.run(
        command(name, *arguments), input=stdin, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def value(lines: list[str], label: str) -> str:
    """Text after `label:` in the only line that starts with it."""
    (line,) = [line for line in lines if line.startswith(f"{label}:")]
    return line.partition(":")[2].strip()


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    pytest.importorskip("fastapi", reason="the server's libraries are not installed")
    from tests.server.running_server import RunningServer

    server = RunningServer()
    yield server.url
    assert server.stop() == 0, "".join(server.lines[-60:])


def test_every_example_has_a_test():
    tests = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    examples = {path.stem for path in EXAMPLES.glob("*.py")}
    assert tests - {"every_example_has_a_test"} == examples


def test_generate():
    lines = run("generate")
    outputs = [line for line in lines if line.startswith("A: ")]
    assert len(outputs) == len(lines) / 2 == 3
    for output, text in zip(outputs, ("otary position embedding", "= 42.", "Tokyo."), strict=True):
        assert text in output
        assert re.search(r"\[stop, [1-9][0-9]* tokens\]$", output)


def test_stream():
    lines = run("stream", "--prompt", "What is the capital of France?")
    assert "Paris" in lines[0]
    counts = re.fullmatch(r"([0-9]+) prompt tokens, ([0-9]+) generated", lines[2])
    assert counts, lines
    assert 1 < int(counts[2]) < 200  # below the limit, so the output ended with an EOS token
    assert re.fullmatch(r"time to first token: [0-9.]+ s", lines[3])


def test_chat():
    turns = ("My name is Ada.", "What is the capital of Japan?", "What is my name?")
    lines = run("chat", stdin="\n".join(turns) + "\n\nThis line is not read.\n")
    outputs = [line for line in lines if line.endswith("tokens cached]")]
    assert len(outputs) == 3
    assert "Tokyo" in outputs[1]
    assert "Ada" in outputs[2], "the answer must use the name from an earlier turn"
    cached = [int(re.search(r"\[([0-9]+) of", output)[1]) for output in outputs]
    assert cached[0] == 0 < cached[2]


def test_structured_output():
    pytest.importorskip("llguidance")
    lines = run("structured_output")
    assert value(lines, "schema") == "Tokyo is in Japan, Asia."
    assert value(lines, "regex") == "17 + 25 = 42"
    assert value(lines, "choice") == "Rome"


def test_tool_calls():
    pytest.importorskip("llguidance")
    lines = run("tool_calls")
    assert value(lines, "call") == "get_weather({'city': 'Oslo'}) -> sunny, 21 degrees"
    assert "sunny, 21 degrees" in value(lines, "answer")


def test_speculative_decoding():
    lines = run("speculative_decoding")
    counts = {}
    for label in ("none", "draft model", "n-gram"):
        match = re.match(r"([0-9]+) tokens in ([0-9]+) steps: .*Mira Holton", value(lines, label))
        assert match, lines
        counts[label] = int(match[1]), int(match[2])
    tokens, steps = counts["none"]
    assert steps == tokens
    for label in ("draft model", "n-gram"):
        assert counts[label][0] == tokens
        assert counts[label][1] < steps, f"{label}: no draft token was accepted"
    assert value(lines, "same tokens") == "True"


@pytest.mark.slow
def test_openai_client(server_url):
    pytest.importorskip("openai")
    lines = run("openai_client", "--url", server_url)
    assert "Paris" in value(lines, "chat")
    assert value(lines, "stream") == value(lines, "chat")
    assert value(lines, "schema") == "Capital(city='Tokyo', country='Japan')"
    assert "42" in value(lines, "response")


@pytest.mark.slow
def test_anthropic_client(server_url):
    pytest.importorskip("anthropic")
    lines = run("anthropic_client", "--url", server_url)
    assert re.search(r"Paris.*\[end_turn\]$", value(lines, "message"))
    assert value(lines, "stream") == value(lines, "message").partition("  [")[0]
    assert value(lines, "tool") == "[('get_weather', {'city': 'Oslo'})]"
    assert re.fullmatch(r"[1-9][0-9]* tokens", value(lines, "count"))


@contextmanager
def running_app() -> Iterator[str]:
    """Starts `fastapi_app.py` on a free port; yields its URL."""
    process = subprocess.Popen(
        command("fastapi_app", "--port", "0"), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL,
        text=True,
    )  # fmt: skip
    assert process.stderr is not None
    try:
        log = []
        for line in process.stderr:
            log.append(line)
            if match := re.search(r"running on (http://[0-9.:]+)", line):
                yield match[1]
                break
        else:
            pytest.fail("".join(log))
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_fastapi_app():
    pytest.importorskip("fastapi")
    httpx2 = pytest.importorskip("httpx2")
    countries = {"France": "Paris", "Japan": "Tokyo", "Italy": "Rome", "Spain": "Madrid"}
    questions = [f"What is the capital of {country}?" for country in countries]
    with running_app() as url, ThreadPoolExecutor(len(questions) + 1) as pool:

        def ask(question):
            return httpx2.get(f"{url}/ask", params={"question": question}, timeout=60)

        rejected = pool.submit(ask, "word " * 3000)
        for response, city in zip(pool.map(ask, questions), countries.values(), strict=True):
            assert response.status_code == 200, response.text
            assert city in response.json()["answer"]
        assert rejected.result().status_code == 400
        assert "2048" in rejected.result().json()["detail"]


@pytest.mark.slow
def test_tensor_parallelism():
    lines = run("tensor_parallelism", "--size", "2")
    assert len(lines) == 2
    assert "Tokyo" in lines[0]
    assert "42" in lines[1]
    # Fails only if --size takes effect: two key/value heads cannot be split
    # among three ranks.
    rejected = subprocess.run(
        command("tensor_parallelism", "--size", "3"), capture_output=True, text=True, check=False
    )
    assert rejected.returncode == 1
    assert re.search(r"UserError: .*3", rejected.stderr.splitlines()[-1])
