"""The agent's command line, `python -m tiny_llm.agent`."""

import json

import pytest

from tests.server.running_server import RunningServer
from tiny_llm.agent.__main__ import main


def run(tmp_path, script, *flags):
    (tmp_path / "script.json").write_text(json.dumps(script))
    return main(["--solution", "ref", "--script", str(tmp_path / "script.json"), *flags])


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


def test_script_edits_a_file(tmp_path, folder, capsys):
    (folder / "a.txt").write_text("one two")
    edit = ["edit_file", {"path": "a.txt", "old": "two", "new": "three"}]
    assert run(tmp_path, [[edit], "Done."], "--workspace", str(folder)) == 0
    assert (folder / "a.txt").read_text() == "one three"
    call = f"edit_file({json.dumps(edit[1])})"
    assert capsys.readouterr().out == f"{call}\n    → edited a.txt\nDone.\n"


def test_step_limit(tmp_path, capsys):
    assert run(tmp_path, [[["add", {"a": 1, "b": 2}]]] * 3, "--max-steps", "2") == 1
    assert capsys.readouterr().out.count("→ 3") == 2


def test_compaction(tmp_path, folder):
    (folder / "a.txt").write_text("x" * 3000)
    calls = [[["read_file", {"path": "a.txt"}]]] * 5
    flags = ["--workspace", str(folder), "--compact", "5000"]
    assert run(tmp_path, [*calls, "Done."], *flags) == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workspace", "/nowhere"], "the workspace /nowhere does not exist or is not a folder"),
        (["--url", "http://127.0.0.1:1"], "--script has no effect with --url"),
        (["--script", "/nowhere"], "--script /nowhere cannot be read"),
        (["--compact", "5", "--compact-to", "6"], "the compaction target must be between 1 and"),
        (["--max-steps", "0"], "must be at least 1, got 0"),
        (["--reasoning-effort", "low"], "--reasoning-effort requires --url"),
    ],
)
def test_user_errors(tmp_path, capsys, flags, message):
    assert run(tmp_path, ["Done."], *flags) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_demo_model_on_a_server_calls_the_tools(capsys):
    with RunningServer() as server:
        assert main(["--solution", "ref", "--url", server.url]) == 0
    assert 'add({"a": 4718, "b": 2593})\n    → 7311\n4718 + 2593 = 7311.' in capsys.readouterr().out
