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


def run(name: str, *arguments: str, stdin: str = "", status: int = 0) -> str:
    """The output, or the errors if the program is expected to fail."""
    program = command(name, *arguments)
    result = subprocess.run(program, input=stdin, capture_output=True, text=True, check=False)
    assert result.returncode == status, result.stderr
    return result.stderr if status else result.stdout


# Program with its arguments, and a pattern of its output. "--url" precedes a server's address.
END = r".*\[stop, [1-9][0-9]* tokens\]"
OUTPUTS = {
    ("generate",): (
        rf"Q: .*\nA: .*otary position embedding{END}\n"
        rf"Q: .*\nA: .*= 42\.{END}\nQ: .*\nA: .*Tokyo\.{END}\n"
    ),
    ("stream", "--prompt", "What is the capital of France?"): (
        # Below the limit of 200 tokens, so the output ended with an EOS token.
        r".*Paris.*\n\n[0-9]+ prompt tokens, 1?[0-9]{1,2} generated\n"
        r"time to first token: [0-9.]+ s\n"
    ),
    ("structured_output",): (
        r"schema: Tokyo is in Japan, Asia\.\nregex:  17 \+ 25 = 42\nchoice: Rome\n"
    ),
    ("tool_calls",): (
        r"call:   get_weather\({'city': 'Oslo'}\) -> (sunny, 21 degrees)\nanswer: .*\1.*\n"
    ),
    ("openai_client", "--url"): (
        r"chat: +(.*Paris.*)\nstream: +\1\n"
        r"schema: +Capital\(city='Tokyo', country='Japan'\)\nresponse: .*42.*\n"
    ),
    ("anthropic_client", "--url"): (
        r"message: +(.*Paris.*)  \[end_turn\]\nstream: +\1\n"
        r"tool: +\[\('get_weather', {'city': 'Oslo'}\)\]\ncount: +[1-9][0-9]* tokens\n"
    ),
    ("tensor_parallelism", "--size", "2"): r".*Tokyo.*\n.*42.*\n",
}
REQUIRED = {"structured_output": "llguidance", "tool_calls": "llguidance"}
REQUIRED |= {"openai_client": "openai", "anthropic_client": "anthropic"}
SLOW = ("openai_client", "anthropic_client", "tensor_parallelism")


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    pytest.importorskip("fastapi", reason="the server's libraries are not installed")
    from tests.server.running_server import RunningServer

    with RunningServer() as server:
        yield server.url


def test_every_example_has_a_test():
    others = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    for path in EXAMPLES.glob("*.py"):
        assert path.stem in others | {name for name, *_ in OUTPUTS}


@pytest.mark.parametrize(
    "program",
    [pytest.param(p, marks=[pytest.mark.slow] * (p[0] in SLOW), id=p[0]) for p in OUTPUTS],
)
def test_output(request, program):
    pytest.importorskip(REQUIRED.get(program[0], "tiny_llm"))
    url = [request.getfixturevalue("server_url")] if program[-1] == "--url" else []
    output = run(*program, *url)
    assert re.fullmatch(OUTPUTS[program], output), output


def test_chat():
    turns = ("My name is Ada.", "What is the capital of Japan?", "What is my name?")
    lines = run("chat", stdin="\n".join(turns) + "\n\nThis line is not read.\n").splitlines()
    outputs = [line for line in lines if line.endswith("tokens cached]")]
    assert len(outputs) == 3
    assert "Tokyo" in outputs[1]
    assert "Ada" in outputs[2], "the answer must use the name from an earlier turn"
    cached = [int(re.search(r"\[([0-9]+) of", output)[1]) for output in outputs]
    assert cached[0] == 0 < cached[2]


def test_speculative_decoding():
    line = r"{}: +([0-9]+) tokens in ([0-9]+) steps: .*Mira Holton.*\n"
    pattern = "".join(line.format(label) for label in ("none", "draft model", "n-gram"))
    output = run("speculative_decoding")
    match = re.fullmatch(pattern + "same tokens: +True\n", output)
    assert match, output
    num_tokens, num_steps, *others = map(int, match.groups())
    assert num_steps == num_tokens
    assert others[::2] == [num_tokens] * 2
    assert max(others[1::2]) < num_steps, "no draft token was accepted"


@contextmanager
def running_app() -> Iterator[str]:
    """Starts `fastapi_app.py` on a free port; yields its URL."""
    program = command("fastapi_app", "--port", "0")
    process = subprocess.Popen(
        program, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )
    assert process.stderr is not None
    log = []
    try:
        while not (match := re.search(r"running on (http://[0-9.:]+)", log[-1] if log else "")):
            log.append(next(process.stderr, None))
            assert log[-1] is not None, log
        yield match[1]
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
def test_ranks_that_the_heads_do_not_allow():
    """Fails only if --size takes effect: two key/value heads cannot be split among three."""
    errors = run("tensor_parallelism", "--size", "3", status=1)
    assert re.search(r"UserError: .*3", errors.splitlines()[-1])
