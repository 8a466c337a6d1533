"""Clients of `benchmark.http_serving`: complete streams, errors, truncated streams."""

import asyncio
import re

import pytest

from benchmark.http_clients import LoadResult, run_clients
from tiny_llm import UserError
from tiny_llm.cli.batching.open_loop import RequestTimes
from tiny_llm.cli.batching.workload import Workload

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = b'data: {"choices": []}\n\n: keep-alive\n\n'
END = b"data: [DONE]\n\n"


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


WHOLE = HEAD + chunks(EVENTS, END) + b"0\r\n\r\n"
WORKLOAD = Workload([[1, 2], [3], [4]], [5, 6, 7])


class Server:
    """Server with a fixed response, sent a few bytes at a time.

    Attributes:
        connections, requests: number of connections and of requests.
    """

    def __init__(self, reply: bytes, keeps: bool):
        self.connections = self.requests = 0
        self._reply = reply
        self._keeps = keeps

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := await self._head(reader):
            self.requests += 1
            await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
            for start in range(0, len(self._reply), 7):
                writer.write(self._reply[start : start + 7])
                await asyncio.sleep(0)
            if not self._keeps:
                break
        writer.close()

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> bytes:
        try:
            return await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:  # the client has closed the connection
            return b""


def answers(reply: bytes, clients: int, keeps: bool = True) -> tuple[LoadResult, Server]:
    """Runs the clients against a server; returns their results and the server."""
    seen = Server(reply, keeps)

    async def main() -> LoadResult:
        server = await asyncio.start_server(seen, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await run_clients(f"http://127.0.0.1:{port}", WORKLOAD, clients, {})
        finally:
            server.close()

    return asyncio.run(main()), seen


def test_every_prompt_is_sent_once():
    result, seen = answers(WHOLE, clients=2)
    assert seen.requests == len(result.requests) == 3
    assert seen.connections == 2
    assert result.output_tokens == 18
    assert sum(one.num_tokens for one in result.requests) == 18
    assert all(0 < one.ttft <= result.seconds for one in result.requests)
    assert all(one.first_token <= one.last_token for one in result.requests)


def test_closed_connection_is_reopened():
    result, seen = answers(WHOLE, clients=1, keeps=False)
    assert seen.requests == len(result.requests) == seen.connections == 3


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 429 Too Many\r\n\r\nfull", "429 Too Many"),
        (HEAD + chunks(EVENTS), "before the end of the response"),
        (HEAD + chunks(EVENTS, END), "before the end of the response"),
    ],
)
def test_truncated_response_is_an_error(reply, reason):
    with pytest.raises(UserError, match=reason):
        answers(reply, clients=1, keeps=False)


def test_figures():
    requests = [RequestTimes(1.0, 1.0 + first / 1000, 2.0, 5) for first in range(101)]
    figures = LoadResult(2.0, 500, requests).figures()
    assert list(figures.values()) == pytest.approx([250, 50, 95])
