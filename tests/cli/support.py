"""Runs commands in the test's process."""

from types import ModuleType

import pytest


def run_command(
    capsys: pytest.CaptureFixture[str], command: ModuleType, *argv: str
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a module's `main`."""
    status = command.main(list(argv))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def assert_rejected(result: tuple[int, str, str], command: str, message: str) -> None:
    """Asserts exit status 2, and an error in one sentence as the last line."""
    status, out, err = result
    assert status == 2
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith(f"{command}: ")
    assert message in last
