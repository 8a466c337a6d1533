"""Error messages for invalid UTF-8 and invalid thread counts."""

import io
import os
import subprocess
import sys

import pytest

from tiny_llm.cli.parsing.command import read_prompt, validate_utf8
from tiny_llm.errors import UserError


def test_stdin_is_utf8_in_every_locale(monkeypatch):
    for content in ("größe".encode(), "größe".encode("latin-1")):
        stream = io.TextIOWrapper(io.BytesIO(content), encoding="ascii")
        monkeypatch.setattr(sys, "stdin", stream)
        if content[2] == 0xC3:
            assert read_prompt("-") == "größe"
        else:
            with pytest.raises(UserError, match=r"the prompt is not UTF-8: byte 2 is 0xf6"):
                read_prompt("-")


def test_argument_with_invalid_utf8():
    assert validate_utf8("the prompt", "größe") == "größe"
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
