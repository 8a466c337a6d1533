"""Control characters in the output; prompts that are not UTF-8; a full disk."""

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table

from tiny_llm.cli.parsing.command import SafeConsole, SafeFormatter, read_prompt
from tiny_llm.errors import UserError, escape_control_characters

ROOT = Path(__file__).resolve().parents[2]
TITLE = "\x1b]0;evil\x07"  # sets a terminal's title
COPY = "\x9d52;c;ZXZpbA==\x9c"  # copies to the clipboard, with C1 characters
AGENT = [sys.executable, "-m", "tiny_llm.agent", "--solution", "ref", "--script"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain text,\n\tänd ünicode 😀", "plain text,\n\tänd ünicode 😀"),
        (TITLE, "\\x1b]0;evil\\x07"),
        (COPY, "\\x9d52;c;ZXZpbA==\\x9c"),
        ("seen\rover\b\x7f", "seen\\rover\\x08\\x7f"),
        ("\ud800", "\\ud800"),
    ],
)
def test_escaped_characters(text, expected):
    assert escape_control_characters(text) == expected
    assert escape_control_characters(expected) == expected


def test_console_escapes_text_and_styles_it(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    console = SafeConsole()
    console.file = io.StringIO()
    table = Table(title=TITLE)
    table.add_row(COPY, f"[bold]{TITLE}")
    console.print(table)
    console.print(TITLE, style="dim")
    out = console.file.getvalue()
    assert "\x1b[" in out
    assert not set("\x07\x9c\x9d") & set(out)
    assert "\x1b]" not in out


def test_log_lines_are_escaped():
    stream, log = io.StringIO(), logging.Logger("test")
    log.addHandler(handler := logging.StreamHandler(stream))
    handler.setFormatter(SafeFormatter("%(levelname)s %(message)s"))
    log.warning("name: %s\nINFO forged", TITLE)
    try:
        raise ValueError(TITLE)
    except ValueError:
        log.exception("failed")
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["WARNING name: \\x1b]0;evil\\x07\\nINFO forged", "ERROR failed"]
    assert lines[-1] == "ValueError: \\x1b]0;evil\\x07"


def write_script(folder: Path) -> str:
    turns = [[[f"tool{TITLE}", {"x": COPY}]], f"Done.{TITLE}\ud800"]
    (folder / "script.json").write_text(json.dumps(turns))
    return str(folder / "script.json")


def test_agent_on_a_terminal_and_in_a_file(tmp_path):
    command = [*AGENT, write_script(tmp_path)]
    terminal, other = os.openpty()
    subprocess.run(command, cwd=ROOT, stdout=other, stderr=other, check=True)
    out = os.read(terminal, 10**6).decode()
    os.close(terminal)
    os.close(other)
    assert "Done.\\x1b]0;evil\\x07\\ud800" in out
    assert not {"\x1b", "\x07", "\x9d"} & set(out)
    out = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert out.endswith(f"Done.{TITLE}\\ud800\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("flags", [["--help"], []])
def test_full_disk_is_one_sentence(tmp_path, flags):
    command = [*AGENT, write_script(tmp_path), *flags]
    with open("/dev/full", "w") as full:
        result = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert result.stderr == "agent: cannot write the output: No space left on device.\n"


def test_stdin_is_utf8_in_every_locale(monkeypatch):
    def read(content):
        stream = io.TextIOWrapper(io.BytesIO(content), encoding="ascii")
        monkeypatch.setattr(sys, "stdin", stream)
        return read_prompt("-")

    assert read("größe".encode()) == read_prompt("größe") == "größe"
    with pytest.raises(UserError, match=r"the prompt is not UTF-8: byte 2 is 0xf6"):
        read("größe".encode("latin-1"))
    with pytest.raises(UserError, match=r"the prompt is not UTF-8 at character 1"):
        read_prompt("a\udcff")


def test_invalid_thread_count_is_not_reported_as_a_model_error():
    command = [sys.executable, "-m", "tiny_llm", "main", "--model", "demo", "--prompt", "a"]
    environment = {**os.environ, "TINY_LLM_NUM_THREADS": "many"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        'main: TINY_LLM_NUM_THREADS must be a whole number from 1 to 1024, got "many".'
    )
