"""Fixtures: a shared server and official clients."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="the server's libraries are not installed")

import openai

from tests.server.running_server import RunningServer

if TYPE_CHECKING:
    import anthropic


@pytest.fixture(scope="session")
def server() -> Iterator[RunningServer]:
    running = RunningServer()
    yield running
    assert running.stop() == 0, "".join(running.lines[-60:])


@pytest.fixture(scope="session")
def client(server: RunningServer) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def async_client(server: RunningServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="session")
def claude(server: RunningServer) -> "anthropic.Anthropic":
    import anthropic  # takes seconds, and few tests need it

    return anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
