"""Optional days: separate task counts; commands and demos run the learner's code."""

import subprocess
from pathlib import Path

import pytest

from tests.course.support import run_command, run_python, write_tree_with_starter
from tiny_llm.cli.parsing.command import replacement_notice, unwritten_files
from tools.course import hybrid_demo, moe_demo
from tools.course.progress import counts
from tools.course.tasks import DAYS, TASKS, day_of
from tools.course.tree import PACKAGE, ROOT
from tools.scoreboard.measure import tasks_shown
from tools.scoreboard.score import format_week

INT8 = ("--kv-cache-dtype", "int8", "--attention-backend", "reference")
QUESTION = ("--prompt", "What is the capital of France?", "--max-tokens", "12")
ENGINE = ("tiny_llm.cli.main", "--loader", "engine", *QUESTION)
DEMO = (*ENGINE, "--model", "demo")


def test_optional_tasks_are_counted_separately():
    optional = sum(task.is_optional for task in TASKS.values())
    required = len(TASKS) - optional
    assert counts(DAYS, {"1.1.1", "6.1.1", "6.2.4"}) == [
        f"1 of {required} tasks done",
        f"2 of {optional} optional tasks done",
    ]
    untested = "1 of 3 tasks done, 1 more with untested Metal kernels"
    assert counts([day_of(2, 2)], {"2.2.1"}, {"2.2.2"}) == [untested]
    assert counts([day_of(1, 1)], set()) == ["0 of 2 tasks done"]
    assert counts([day_of(6, 1)], {"6.1.2"}) == ["1 of 4 optional tasks done"]


def test_scoreboard_shows_started_optional_tasks():
    required = [task.id for task in TASKS.values() if not task.is_optional]
    assert [task.id for task in tasks_shown(["1.1.1"])] == required
    week_6 = [task.id for task in tasks_shown(["6.2.1"]) if task.id not in required]
    assert week_6 == [task for task in TASKS if task.startswith("6.")]
    assert [task.id for task in tasks_shown(["4.2.3"]) if task.id not in required] == ["4.2.3"]
    assert [format_week(week) for week in ("4", "6")] == ["4", "6 (optional)"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of the demo model converted to a mixture of experts."""
    path = tmp_path_factory.mktemp("mixture") / "mixture"
    assert moe_demo.main([str(path)]) == 0
    return str(path)


@pytest.mark.slow
def test_mixture_output_equals_demo_output(folder):
    for model in (folder, "demo"):
        result = run_command(ENGINE[0], None, *ENGINE[1:], "--model", model)
        assert result.stdout.startswith("The capital of France is Paris."), result.stderr


def test_unrelated_folder_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SystemExit):
        moe_demo.main([str(tmp_path)])
    assert "exists and is not a checkpoint" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


RANKS = (*DEMO, "--tensor-parallel-size", "2")
DISK = (*DEMO, "--prefix-cache-dir", "PAGES")
JSON, STREAM = ("tools.course.json_demo",), ("tools.course.stream_demo", "--budget", "4")
HYBRID = "tools.course.hybrid_demo"
# (module, command that runs its code, day of its tasks)
COMMANDS = [
    ("models/families/experts.py", (*ENGINE, "--model", "MIXTURE"), "6.1"),
    ("models/checkpoint/sharding.py", RANKS, "6.2"),
    ("models/parallel/layers.py", RANKS, "6.2"),
    ("models/parallel/decoder.py", RANKS, "6.2"),
    ("kv_storage/int8_rows.py", (*DEMO, *INT8), "6.3"),
    ("kv_storage/page_store.py", DISK, "6.6"),
    ("engine/execution/disk_tier.py", DISK, "6.6"),
    ("attention/gated_delta.py", (HYBRID, "memory"), "6.4"),
    ("models/families/gated_delta_net.py", (HYBRID, "memory"), "6.4"),
    ("engine/scheduling/checkpoints.py", (HYBRID, "conversation"), "6.5"),
    ("engine/scheduling/state_slots.py", (HYBRID, "conversation"), "6.5"),
    ("engine/structured_output/bitmask.py", JSON, "5.4"),
    ("engine/spec_decode/draft_tokens.py", JSON, "5.4"),
    ("engine/tool_calls/json_scanner.py", STREAM, "5.4"),
    ("engine/tool_calls/json_calls.py", STREAM, "5.5"),
    ("engine/tool_calls/format.py", STREAM, "5.5"),
    ("engine/outputs/output_parser.py", STREAM, "5.5"),
    ("engine/structured_output/thinking_budget.py", STREAM, "5.5"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("module", "command", "day"), COMMANDS)
def test_command_fails_with_the_error_of_an_unwritten_task(tmp_path, folder, module, command, day):
    tree = write_tree_with_starter(tmp_path / "mine", module)
    folders = {"MIXTURE": folder, "PAGES": str(tmp_path / "pages")}
    name, *flags = [folders.get(each, each) for each in command]
    result = run_command(name, tree, *flags)
    assert result.returncode != 0, result.stdout
    assert "week {}, day {}, task".format(*day.split(".")) in result.stderr, result.stderr
    assert "is yours to write" in result.stderr


@pytest.mark.slow
def test_serve_runs_the_learner_code_except_unwritten_files(tmp_path, monkeypatch):
    """Imports the learner's file of day 5.1, but not the unwritten one of 5.2."""
    pytest.importorskip("fastapi", reason="needs the server's dependencies")
    from tests.server.running_server import RunningServer

    files = "server/engine_client/request_stream.py", "server/protocol/streaming.py"
    tree = write_tree_with_starter(tmp_path / "mine", *files)
    path = PACKAGE / files[1]
    written = (ROOT / path).read_text(encoding="utf-8")
    mine = written.replace('b"data: " + to_json(data)', 'b"data: mine "')
    assert mine != written
    (tree / path).write_text(mine, encoding="utf-8")
    monkeypatch.setenv("TINY_LLM_MINE", str(tree))
    running = RunningServer("--solution", "mine")
    body = {"prompt": "Hello", "max_tokens": 2, "stream": True, "logprobs": 0}
    answer = running.post("/v1/completions", body).text
    assert running.stop() == 0
    assert "data: mine " in answer
    notice = f"unwritten tasks: {files[0]}"
    assert any(notice in line for line in running.lines)


def run_mine(folder: Path, unwritten: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that has yet to find the learner's tree, which lacks a module."""
    tree = write_tree_with_starter(folder / unwritten.replace("/", "."), unwritten)
    command = ("-m", *command, "--solution", "mine")
    return run_python(None, *command, TINY_LLM_MINE=str(tree))


AGENT = ("tiny_llm.agent",)
ONE_OUTPUT = ("tools.course.json_demo", "--outputs", "1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "other", "output", "own", "error"),
    [
        (AGENT, "engine/outputs/output_parser.py", "4718 + 2593 = 7311.",
         "agent/loop.py", (2, "week 7, day 1, task 4")),
        (ONE_OUTPUT, "engine/scheduling/prefix_cache.py", "35 tokens in 22 steps",
         "engine/structured_output/bitmask.py", (1, "week 5, day 4, task")),
    ],
    ids=["agent", "demo"],
)  # fmt: skip
def test_unwritten_files_of_other_days_are_replaced(tmp_path, command, other, output, own, error):
    result = run_mine(tmp_path, other, *command)
    assert output in result.stdout, result.stderr
    assert f"unwritten tasks: {other}" in result.stderr
    result = run_mine(tmp_path, own, *command)
    assert result.returncode == error[0]
    assert error[1] in result.stderr, "a task of the day itself must be an error"


def test_unwritten_graph_capture_is_not_replaced(tmp_path):
    """The reference's would call the learner's C++ of day 4.7, which may be unwritten, too."""
    modules = ("kernels/graph_capture.py", "qwen3_week2/captured.py", "agent/tools.py")
    write_tree_with_starter(tmp_path, *modules)
    assert unwritten_files(tmp_path) == ["agent/tools.py"]
    assert "tasks: a.py, b.py" in replacement_notice(["a.py", "b.py"])
    assert "tasks: 29 files, see `pdm run progress`" in replacement_notice(["a.py"] * 29)


@pytest.mark.slow
def test_json_demo_writes_only_json_with_a_grammar():
    result = run_command("tools.course.json_demo", None, "--outputs", "3")
    assert "grammar  of 3, 3 are JSON, 3 match the schema" in result.stdout, result.stderr
    assert '"⟨city"⟩: "Tokyo"' in result.stdout
    assert "35 tokens in 22 steps" in result.stdout


@pytest.mark.slow
def test_stream_demo_shows_a_partial_tool_call():
    lines = run_command("tools.course.stream_demo", None, "--budget", "4").stdout.splitlines()
    kinds = [line.split()[2] for line in lines]
    assert kinds[:3] == ["reasoning"] * 3
    assert kinds[3] == "call"
    assert len(kinds) > 10
    assert set(kinds[4:]) == {"arguments"}


@pytest.mark.slow
def test_hybrid_demo():
    """The state does not grow, and turns hit the prefix of the previous prompt."""
    _, *rows = hybrid_demo.memory()
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == [str(context) for context in hybrid_demo.CONTEXTS]
    assert len({row[6] for row in cells}) == 1
    _, _, *rows = hybrid_demo.conversation(3)
    previous = 0
    for row in rows:
        prompt, without, cached = (int(row.split()[i]) for i in (1, 2, 5))
        assert without == 0
        assert previous - 16 - hybrid_demo.PAGE_SIZE <= cached <= previous
        previous = prompt
