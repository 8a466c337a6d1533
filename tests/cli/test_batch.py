"""The `batch` command, and the batch runner shared with `bench`."""

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
from dataclasses import replace

import mlx.core as mx
import pytest
from rich.console import Console

from tests.cli.support import run_command
from tests.support import ByteTokenizer, assert_equal, tiny_model
from tiny_llm import Qwen3ModelWeek2, Qwen3ModelWeek3, make_sampler, simple_generate_with_kv_cache
from tiny_llm.cli import batch
from tiny_llm.cli.backends.batch_runs import (
    BatchProgress,
    EngineState,
    RequestProgress,
    open_batch_run,
)
from tiny_llm.cli.backends.local import Checkpoint
from tiny_llm.cli.batch import PlainLines, batch_table, speed_line
from tiny_llm.demo import BATCH_PROMPTS
from tiny_llm.engine.scheduling.page_manager import PageCounts
from tiny_llm.models.loading import serving_model
from tiny_llm.models.memory import size_of_tree

DEMO = ["--model", "demo"]
STATISTICS = re.compile(
    r"16 requests \| prompt: \d+ tokens, [\d.]+ tokens/s \| generation: (\d+) tokens, "
    r"[\d.]+ tokens/s \| [\d.]+ s \| peak memory: [\d.]+ GB"
)


def run(capsys, *argv: str) -> tuple[int, str, str]:
    return run_command(capsys, batch, *DEMO, *argv)


def test_outputs_are_in_prompt_order_when_redirected(capsys):
    status, out, err = run(capsys)
    assert status == 0
    blocks = out.split("\n\n")
    assert len(blocks) == 17
    for index, (block, prompt) in enumerate(zip(blocks, BATCH_PROMPTS, strict=False)):
        question, output = block.split("\n", 1)
        assert question == f"[{index}] {prompt.splitlines()[-1]}"
        assert output
    assert blocks[3].endswith("The capital of Japan is Tokyo.")
    state, statistics = blocks[-1].strip().split("\n")
    assert state.startswith("prefix cache hits: ")
    assert STATISTICS.fullmatch(statistics)
    assert "\x1b" not in out + err, "without a terminal, the output must contain no control codes"
    lines = err.splitlines()
    assert lines[0] == "model: demo"
    for index in range(16):
        start_line = lines.index(f"[{index}] started: {BATCH_PROMPTS[index].splitlines()[-1]}")
        assert any(line.startswith(f"[{index}] finished: ") for line in lines[start_line:])
    assert "[3] finished: The capital of Japan is Tokyo." in lines
    assert len(lines) == 1 + 2 * 16


def test_thinking_max_tokens_and_batch_shape(capsys):
    shape = ["--max-tokens", "2", "--batch-size", "3", "--prefill-step", "64"]
    status, out, _ = run(capsys, "--enable-thinking", *shape)
    assert status == 0
    assert out.count("<think>") == 16
    assert STATISTICS.fullmatch(out.splitlines()[-1])[1] == str(16 * 2)


@pytest.mark.slow
def test_implementations_have_the_same_output_and_the_engine_records_it(capsys, tmp_path):
    file = tmp_path / "run.json"
    week2, engine = ["--loader", "week2"], ["--record", str(file), "--kv-cache-bytes", str(2**24)]
    others = (week2, ["--loader", "week3"], ["--solution", "mlx"])
    short = ["--max-tokens", "12", "--batch-size", "3", "--prefill-step", "16"]
    short_runs = [[*flags, *short] for flags in ([], *others)]
    outputs = []
    for flags in (*short_runs, week2, [*engine, "--draft-model", "demo-draft"]):
        status, out, err = run(capsys, *flags)
        assert status == 0, err
        assert "[15] finished: " in err
        outputs.append(out.split("\n\n")[:16])
    assert outputs[:4] == outputs[:1] * 4
    assert outputs[4] == outputs[5]
    hits = r"prefix cache hits: \d+ of 1692 prompt tokens .* draft tokens: \d+ of \d+"
    assert re.search(hits, out)
    assert STATISTICS.fullmatch(out.splitlines()[-1])
    assert f"recorded: {file}" in err
    recording = json.loads(file.read_text())
    assert (recording["schema"], recording["version"]) == ("tiny-llm-run", 1)
    ended = [event for event in recording["events"] if event["event"] == "request_ended"]
    assert sorted(int(event["request_id"]) for event in ended) == list(range(16))
    assert {event["reason"] for event in ended} == {"stop"}


# Redraws after every step, since the demo model may finish within one refresh interval.
PROGRAM = (
    "import sys; from tiny_llm.cli import batch; batch.REDRAW_SECONDS = 0; sys.exit(batch.main())"
)


def run_in_terminal(*argv: str, interrupt: bool = False) -> tuple[int, str]:
    """Runs the command in a 100-column terminal; returns its status and output."""
    controller, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *DEMO, *argv],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env={**os.environ, "COLUMNS": "100", "LINES": "40", "TERM": "xterm-256color"},
    )
    os.close(terminal)
    received = b""
    while True:
        try:
            chunk = os.read(controller, 65536)
        except OSError:  # raised on Linux after the process exits
            chunk = b""
        if not chunk:
            break
        received += chunk
        if interrupt and b"decoding" in received:
            process.send_signal(signal.SIGINT)
            interrupt = False
    os.close(controller)
    return process.wait(timeout=60), received.decode()


@pytest.mark.parametrize(
    ("flags", "present", "absent"),
    [
        (["--max-tokens", "2", "--plain"], ["[0] started: "], "decoding"),
        (
            ["--max-tokens", "16"],
            [
                *(
                    "slot",
                    "decoding",
                    "waiting",
                    "finished",
                    "16 of 16",
                    "tokens/s",
                    "[15] Who are",
                ),
                *("pages", "shared", "prefix cache"),
            ],
            "started: ",
        ),
    ],
    ids=["plain", "live"],
)
def test_output_in_a_terminal(flags, present, absent):
    status, screen = run_in_terminal(*flags)
    assert status == 0
    assert not [word for word in present if word not in screen]
    assert absent not in screen


def test_interrupt_restores_the_terminal():
    status, screen = run_in_terminal("--enable-thinking", interrupt=True)
    assert status == 130
    assert "Traceback" not in screen
    assert screen.rindex("\x1b[?25h") > screen.rindex("\x1b[?25l"), (
        "the cursor must be visible again at the end"
    )


def render(batch_run, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(batch_table(batch_run, 4, 2.0))
    return console.file.getvalue()


class FakeRun:
    is_done, outputs, engine = False, {3: "done"}, None
    prefilling = (RequestProgress(5, 300, 128),)

    def progress(self):
        slots = [RequestProgress(0, 12, 12, 5, "naïve 数学" * 20), None]
        started = [slots[0], *self.prefilling, RequestProgress(3, 10, 10, 5, "done")]
        return BatchProgress([7, 8], started, slots, self.prefilling, self.engine)


@pytest.mark.parametrize("width", [90, 100, 160])
def test_live_view_shows_every_request_state(width):
    lines = render(FakeRun(), width).splitlines()
    assert lines[1].split()[:4] == ["0", "0", "decoding", "5"]
    assert "…" in lines[1], "a long output must be truncated on the left"
    assert lines[1].rstrip().endswith("naïve 数学")
    assert lines[2].split() == ["1", "–", "idle"]
    assert lines[3].split()[:5] == ["next", "5", "prefill", "128/300", "0"]
    assert lines[5].strip() == "waiting  7 8"
    assert lines[6].endswith("1 of 4")
    assert "prompt: 150 tokens, 75.0 tokens/s | generation: 10 tokens, 5.0 tokens/s" in lines[7]


def test_live_view_without_prefill_or_tokens():
    fake_run = FakeRun()
    fake_run.prefilling = [RequestProgress(5, 300, 300, 1, "<think>")]
    assert "waiting for slot" in render(fake_run)
    fake_run.prefilling = []
    assert render(fake_run).splitlines()[3].split() == ["next", "–", "idle"]
    assert speed_line([], 0.0).startswith("prompt: 0 tokens, 0.0 tokens/s")


def test_live_view_of_kv_cache_pages():
    fake_run = FakeRun()
    pages = PageCounts(free=8, cached=4, used=4, shared=2)
    fake_run.engine, fake_run.prefilling = EngineState(pages, 200, 50, 32, 3, 10, 7), []
    lines = render(fake_run, 130).splitlines()
    assert lines[3].strip() == "", "the engine's view must have no row for prefill"
    bar = lines[5].split()[1]
    assert [bar.count(character) for character in "█▒░"] == [8, 7, 15]
    assert "2 shared, 2 exclusive, 4 cached, 8 free of 16" in lines[5]
    expected = "50 of 200 prompt tokens (25%), 32 of them from disk | preemptions: 3"
    assert f"{expected} | draft tokens: 7 of 10" in lines[6]


def test_plain_output_has_one_line_per_event():
    console = Console(file=io.StringIO(), width=30)
    lines = PlainLines(console, [f"question {index}, which is rather long" for index in range(9)])
    fake_run = FakeRun()
    fake_run.outputs = {3: "[b]two\n\nlines"}
    lines.update(fake_run)
    lines.update(fake_run)
    printed = console.file.getvalue().splitlines()
    assert printed[0] == "[0] started: question 0, which is rather long"
    assert_equal(len(printed), 7 + 1, "a line for each of 7 started requests and 1 finished one")
    assert printed[-1] == "[3] finished: [b]two lines"


PROMPTS = ["a", "hello there", "x" * 40, "one two three", "zz"]
LIMITS = [3, 1, 6, 2, 12]


@pytest.mark.parametrize(
    "flags",
    [["--loader", "week2"], ["--solution", "mlx"], ["--loader", "engine"]],
    ids=lambda flags: flags[1],
)
def test_progress_and_output_of_each_prompt(flags):
    flags = [*flags, "--batch-size", "2", "--prefill-step", "16", "--sampler-temp", "0"]
    args = batch.make_parser("batch").parse_args(flags)
    mlx_model = tiny_model(vocab_size=256)
    checkpoint = Checkpoint("qwen3", mlx_model, ByteTokenizer())
    prompts = [list(prompt.encode()) for prompt in PROMPTS]
    batch_run = open_batch_run(args, checkpoint, prompts, LIMITS, make_sampler(0), ignore_eos=True)
    progress = batch_run.progress()
    assert (progress.waiting, progress.started) == (list(range(5)), [])
    partly_prefilled = False
    while not batch_run.is_done:
        batch_run.step()
        progress = batch_run.progress()
        assert {each.index for each in progress.started} | set(progress.waiting) == set(range(5))
        assert len(progress.slots) == 2
        active = [*filter(None, progress.slots), *progress.prefilling]
        indices = [*(each.index for each in active), *batch_run.outputs, *progress.waiting]
        assert sorted(indices) == list(range(5)), "a started prompt is either active or finished"
        partly_prefilled |= any(0 < p.prefilled < p.prompt_tokens for p in active)
        if "engine" in flags:
            assert f"{progress.engine.pages.free} free of" in render(batch_run, 120)
    assert partly_prefilled
    model = Qwen3ModelWeek2(mlx_model)
    for each in batch_run.progress().started:
        prompt, limit = PROMPTS[each.index], LIMITS[each.index]
        assert each.new_tokens == limit
        assert each.prompt_tokens == each.prefilled == len(prompt)
        expected = simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, max_tokens=limit)
        assert batch_run.outputs[each.index] == expected


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float32], ids=str)
def test_kv_memory_fits_the_longest_requests(dtype):
    mlx_model = tiny_model(vocab_size=256)
    mlx_model.set_dtype(dtype)
    size = size_of_tree(mlx_model)
    assert size.kv_bytes_per_token == Qwen3ModelWeek3(mlx_model).kv_bytes_per_token
    decoder = serving_model("demo", mlx_model, page_size=16, kv_cache_dtype="int8")
    int8_size = replace(size, kv_cache_dtype="int8")
    assert int8_size.kv_bytes_per_token == decoder.kv_bytes_per_token


def test_seed_makes_the_batch_reproducible(capsys, monkeypatch):
    monkeypatch.setattr(batch, "BATCH_PROMPTS", ("Hello!", "What is 2 + 2?"))
    argv = ["--sampler-temp", "50", "--sampler-top-k", "40", "--max-tokens", "8", "--seed"]

    def outputs(seed: str) -> str:
        mx.random.seed(0)
        return run(capsys, *argv, seed)[1].rpartition("\n\n")[0]

    assert outputs("1") == outputs("1")
    assert outputs("1") != outputs("2")
