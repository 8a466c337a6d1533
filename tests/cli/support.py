"""Runs commands in the test's process; a stub of a server for `--url`."""

from functools import partial
from types import ModuleType

import httpx2
import pytest


def run_command(
    capsys: pytest.CaptureFixture[str], command: ModuleType, *argv: str
) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a module's `main`."""
    status = command.main(list(argv))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def stub_server(
    monkeypatch: pytest.MonkeyPatch, content: bytes | str, status: int = 200
) -> list[httpx2.Request]:
    """Gives every request of an `httpx2.Client` the same response; returns the requests."""
    requests = []

    def respond(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        return httpx2.Response(status, content=content)

    client = partial(httpx2.Client, transport=httpx2.MockTransport(respond))
    monkeypatch.setattr(httpx2, "Client", client)
    return requests
