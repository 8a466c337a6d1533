"""The agent's built-in tools, with unusual arguments that fit the schemas."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tiny_llm.agent import Workspace, assistant
from tiny_llm.agent.tools import calculator, run_call


def call(tools, name, arguments):
    by_name = {tool.name: tool for tool in tools}
    return run_call(assistant(None, (name, arguments))["tool_calls"][0], by_name)["content"]


@pytest.mark.parametrize(("name", "expected"), [("add", 9), ("subtract", 5), ("multiply", 14)])
def test_calculator(name, expected):
    assert call(calculator(), name, {"a": 7, "b": 2}) == str(expected)
    for b in (10**3999, 10**4299):  # too large for a float
        text = call(calculator(), name, json.dumps({"a": 1.5, "b": b}))
        assert text.startswith("error: the numbers are too large")


def use(workspace, name, **arguments):
    return call(workspace.tools(), name, arguments)


def test_first_line_may_be_an_integral_float(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    text = use(Workspace(tmp_path), "read_file", path="a.txt", first_line=2.0)
    assert text == "two\nthree\n"


def test_path_of_a_thousand_parts(tmp_path):
    workspace, path = Workspace(tmp_path), "d/" * 1000 + "file"
    assert use(workspace, "edit_file", path=path, old="", new="text") == f"created {path}"
    assert use(workspace, "edit_file", path=path, old="text", new="other") == f"edited {path}"
    assert use(workspace, "read_file", path=path) == "other"
    assert use(workspace, "list_files").startswith("d/d/")
    assert use(workspace, "read_file", path="d/" * 3000).startswith("error: ")
    # Before Python 3.13, pytest's cleanup recurses.
    subprocess.run(["rm", "-r", tmp_path / "d"], check=True)


def test_large_file_is_not_read(tmp_path):
    workspace = Workspace(tmp_path)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(300 * 10**6)
    message = "error: large is larger than 10,000,000 bytes"
    assert use(workspace, "read_file", path="large") == message
    assert use(workspace, "edit_file", path="large", old="a", new="b") == message


def test_links_added_after_the_check_are_not_followed(tmp_path, monkeypatch):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "work").mkdir()
    (tmp_path / "work/link").symlink_to(tmp_path / "secret")
    workspace = Workspace(tmp_path / "work")
    monkeypatch.setattr(workspace, "resolve", lambda path: workspace.root / path)
    content = use(workspace, "read_file", path="link")
    assert content.startswith("error: ")
    assert "secret" not in content
    os.mkfifo(tmp_path / "work/pipe")
    monkeypatch.setattr(Path, "is_file", lambda path: True)
    assert use(workspace, "read_file", path="pipe").endswith("is not a regular file")
