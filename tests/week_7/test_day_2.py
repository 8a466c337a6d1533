"""Week 7, day 2, optional: sandboxed workspace, edits and bounded output."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support import assert_equal
from tests.week_7.support import error_of
from tiny_llm.agent import Workspace
from tiny_llm.agent.tools import run_call
from tiny_llm.agent.workspace import (
    MIN_OUTPUT,
    replace_once,
    truncate,
    truncation_note,
    write_atomically,
)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    """Workspace with symlinks to files inside, a secret outside, and in a loop."""
    root = tmp_path / "files"
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "files-secret").mkdir()
    (tmp_path / "files-secret" / "key.txt").write_text("secret")
    (root / "inside").symlink_to(root / "src")
    (root / "outside").symlink_to(tmp_path / "files-secret")
    (root / "key").symlink_to(tmp_path / "files-secret" / "key.txt")
    (root / "circle").symlink_to(root / "circle")
    (tmp_path / "link").symlink_to(root)
    return Workspace(tmp_path / "link")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/a.txt", "src/a.txt"),
        ("src/../src/./a.txt", "src/a.txt"),
        ("src/new/b.txt", "src/new/b.txt"),
        ("inside/a.txt", "src/a.txt"),
        ("..a", "..a"),
        (".", "."),
    ],
)
def test_task_1_paths_inside(workspace, path, expected):
    assert_equal(workspace.resolve(path), workspace.root / expected, f"{expected} under the root")


def test_task_1_tools_of_a_workspace_stay_inside(workspace):
    path = workspace.root / "src" / "a.txt"
    assert_equal(workspace.resolve(str(path)), path)
    tools = {tool.name: tool for tool in workspace.tools()}

    for name, arguments in [
        ("read_file", {"path": "outside/key.txt"}),
        ("edit_file", {"path": "../files-secret/key.txt", "old": "", "new": "x"}),
        ("read_file", {"path": "circle"}),
        ("read_file", {"path": "a\0b"}),
    ]:
        call = {"id": "1", "function": {"name": name, "arguments": json.dumps(arguments)}}
        content = str(run_call(call, tools)["content"])
        assert content.startswith("error: "), f"expected an error for {arguments}, got {content!r}"


@pytest.mark.parametrize(
    "path",
    [
        "..",
        "../files-secret/key.txt",
        "src/../../files-secret/key.txt",
        "/etc/passwd",
        "outside/key.txt",
        "outside/new.txt",
        "key",
        "inside/../../files-secret/key.txt",
    ],
)
def test_task_1_paths_outside(workspace, path):
    message = error_of(workspace.resolve, path)
    assert path in message, f"expected the path in the message, got: {message}"


@pytest.mark.parametrize(
    ("text", "old", "new", "expected"),
    [
        ("a = 1\nb = 2\n", "b = 2", "b = 3", "a = 1\nb = 3\n"),
        ("a = 1\r\nb = 2\r\n", "1", "11", "a = 11\r\nb = 2\r\n"),
        ("a(b)*c", "(b)*", r"\1", r"a\1c"),
        ("old", "old", "", ""),
        ("old", "old", "old old", "old old"),
    ],
)
def test_task_2_only_occurrence(text, old, new, expected):
    assert_equal(replace_once(text, old, new), expected)


@pytest.mark.parametrize(
    ("text", "old"),
    [("x = 1\nx = 1\n", "x = 1"), ("aaa", "aa"), ("abab aba", "aba"), ("1 1 1 1", "1")],
)
def test_task_2_several_occurrences(text, old):
    message = error_of(replace_once, text, old, "new")
    never = error_of(replace_once, text, "no such text", "new")
    assert message != never, f"expected another message than for no occurrence, got: {message}"


def test_task_2_no_occurrence():
    for text in ("", "One", "o\nne"):
        message = error_of(replace_once, text, "one", "two")
        assert len(message) > 20, f"expected the problem and a remedy, got: {message}"


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Records `fsync` (file size) and `replace` (paths and target's content)."""
    events: list[tuple[str, Any]] = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        events.append(("fsync", os.fstat(number).st_size))
        fsync(descriptor)

    def record_replace(source: Any, target: Any, **options: Any) -> None:
        content = Path(target).read_bytes() if Path(target).exists() else None
        events.append(("replace", (Path(source), Path(target), content)))
        replace(source, target, **options)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    monkeypatch.setattr(os, "rename", record_replace)
    return events


@pytest.mark.parametrize("old", [None, b"old content", b""], ids=["new file", "old file", "empty"])
def test_task_3_file_is_replaced_atomically(tmp_path, events, old):
    path = tmp_path / "a.txt"
    if old is not None:
        path.write_bytes(old)
    write_atomically(path, b"new content\r\n")
    assert_equal(path.read_bytes(), b"new content\r\n", "the new content")
    assert_equal([path], list(tmp_path.iterdir()), "the written file only")
    assert_equal([kind for kind, _ in events], ["fsync", "replace"], "fsync, then replace")
    assert_equal(events[0][1], 13, "all 13 bytes to be written before fsync")
    source, target, before = events[1][1]
    assert_equal(source.parent, path.parent, "a temporary file in the same folder")
    assert_equal((target, before), (path, old), "the old content until the replace")


@pytest.mark.parametrize("mode", [0o755, 0o640, 0o600], ids=oct)
def test_task_3_permissions_are_kept(tmp_path, mode):
    path = tmp_path / "run.sh"
    path.write_text("old")
    path.chmod(mode)
    write_atomically(path, b"new")
    actual = path.stat().st_mode & 0o777
    assert actual == mode, f"expected the permissions {mode:o}, got {actual:o}"


@pytest.mark.parametrize("name", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(28, "No space left"), KeyboardInterrupt()], ids=repr)
def test_task_3_failure_changes_nothing(tmp_path, monkeypatch, name, error):
    def fail(*arguments: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(os, name, fail)
    if name == "replace":
        monkeypatch.setattr(os, "rename", fail)
    path = tmp_path / "a.txt"
    path.write_text("old")
    with pytest.raises(type(error)):
        write_atomically(path, b"new")
    assert path.read_text() == "old", f"expected the old content, got {path.read_text()!r}"
    names = [file.name for file in tmp_path.iterdir()]
    assert names == ["a.txt"], f"expected no temporary file in the folder, got {names}"


@pytest.mark.parametrize("length", [0, 1, MIN_OUTPUT - 1, MIN_OUTPUT])
def test_task_4_short_texts_are_unchanged(length):
    text = "x" * length
    assert_equal(truncate(text, MIN_OUTPUT), text, f"{length} characters unchanged")


@pytest.mark.parametrize("limit", [100, 101, 137, 1000])
@pytest.mark.parametrize("more", [1, 2, 100, 899, 900, 12_345, 300_000])
def test_task_4_head_note_and_tail(more, limit):
    length = limit + more
    text = "".join(chr(0x4E00 + index % 5000) for index in range(length))
    actual = truncate(text, limit)
    assert len(actual) <= limit, f"expected at most {limit} characters, got {len(actual)}"
    assert len(actual) >= limit - 10, f"expected at least {limit - 10}, got {len(actual)}"
    head, _, rest = actual.partition("\n[… ")
    note, _, tail = rest.partition(" …]\n")
    expected = truncation_note(length - len(head) - len(tail), length).strip("\n")
    assert f"[… {note} …]" == expected, f"expected the note {expected}, got [… {note} …]"
    assert text.startswith(head), f"expected the start of the text, got {head!r}"
    assert text.endswith(tail), f"expected the end of the text, got {tail!r}"
    difference = abs(len(head) - len(tail))
    assert difference <= 1, f"expected equal halves, got {len(head)} and {len(tail)} characters"


def test_task_4_workspace_results_are_truncated(tmp_path):
    (tmp_path / "log.txt").write_text("start\n" + "…\n" * 1000 + "error: disk full\n")
    text = Workspace(tmp_path, 200).read_file("log.txt")
    assert text.startswith("start"), f"expected the log's first line, got {text!r}"
    assert text.endswith("error: disk full\n"), f"expected the log's last line, got {text!r}"
