"""Fixtures: a shared server and official clients."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="the server's libraries are not installed")

from tests.server.running_server import RunningServer

if TYPE_CHECKING:
    import anthropic
    import openai


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    with RunningServer() as running:
        yield running


@pytest.fixture(scope="session")
def client(server: RunningServer) -> "openai.OpenAI":
    return server.openai


@pytest.fixture(scope="session")
def claude(server: RunningServer) -> "anthropic.Anthropic":
    return server.anthropic
