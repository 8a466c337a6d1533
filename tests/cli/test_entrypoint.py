"""The entry points `tiny-llm COMMAND` and `python -m tiny_llm COMMAND`."""

import shlex
import shutil
import subprocess
import sys
from importlib.metadata import version

import pytest

from tiny_llm import demo
from tiny_llm.cli import check_installation, entrypoint

FRANCE = ["--model", "demo", "--prompt", "What is the capital of France?"]


def test_python_dash_m():
    command = [sys.executable, "-m", "tiny_llm", "main", *FRANCE, "--max-tokens", "0"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("python -m tiny_llm main: argument --max-tokens: must be")


@pytest.mark.parametrize("redirection", ["<&-", ">&-", "2>&-"])
def test_closed_standard_stream_is_not_an_error(redirection):
    command = shlex.join([sys.executable, "-m", "tiny_llm", "main", *FRANCE])
    shell = ["sh", "-c", f"{command} {redirection}"]
    result = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert ("Paris" in result.stdout) == (redirection != ">&-")


@pytest.mark.parametrize("command", entrypoint.COMMANDS)
def test_messages_use_the_invoked_name(capsys, command):
    assert entrypoint.main([command, "--nonsense"]) == 2
    assert capsys.readouterr().err.startswith(f"tiny-llm {command}: unrecognized arguments")
    with pytest.raises(SystemExit) as exit_info:
        entrypoint.main([command, "--help"])
    assert exit_info.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: tiny-llm {command} ")


def test_version_and_help(capsys):
    out = []
    for flag in ("--version", "--help"):
        with pytest.raises(SystemExit) as exit_info:
            entrypoint.main([flag])
        assert exit_info.value.code == 0
        out.append(capsys.readouterr().out)
    assert out[0] == f"tiny-llm {version('tiny-llm')}\n"
    assert all(text in out[1] for text in entrypoint.COMMANDS.values())


def test_pins_for_other_platforms_are_ignored(monkeypatch):
    pins = ["mlx==9; sys_platform == 'nowhere'", "mlx[cpu]==8", "mlx-lm==7"]
    monkeypatch.setattr(check_installation, "requires", lambda _: pins)
    for installed, ok in (("8", True), ("9", False), ("7", False)):
        monkeypatch.setattr(check_installation, "version", lambda _, installed=installed: installed)
        assert check_installation._package("mlx").ok is ok


def test_corrupt_checkpoint_in_the_hub_cache(tmp_path, monkeypatch):
    shutil.copytree(demo.TARGET_PATH, tmp_path, dirs_exist_ok=True)
    monkeypatch.setattr(check_installation, "find_in_cache", lambda _: tmp_path)

    [*_, result] = check_installation.run_checks()
    assert result.ok
    (tmp_path / "config.json").write_text("{")
    [*_, result] = check_installation.run_checks()
    assert result.ok is False
    assert "corrupt" in result.found
    assert "hf download Qwen/Qwen3-8B-MLX-4bit --force-download" in result.fix


@pytest.mark.parametrize("shell", entrypoint.SHELLS)
def test_shell_completion_lists_commands_and_flags(capsys, shell):
    assert entrypoint.main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    for word in (*entrypoint.COMMANDS, "--sampler-temp", "--kv-cache-bytes", "--num-seqs"):
        assert word in script if shell != "tcsh" else word.lstrip("-") in script
