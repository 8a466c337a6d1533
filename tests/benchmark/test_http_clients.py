"""Clients of `benchmark.http_serving`: complete or truncated streams, errors."""

import asyncio
import re
from contextlib import suppress

import pytest

from benchmark.http_clients import LoadResult, run_clients
from tiny_llm import UserError
from tiny_llm.cli.open_loop import Workload

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
EVENTS = b'data: {"choices": []}\n\n: keep-alive\n\n'
END = b"data: [DONE]\n\n"


def chunks(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)


COMPLETE = HEAD + chunks(EVENTS, END) + b"0\r\n\r\n"
WORKLOAD = Workload([[1, 2], [3], [4]], [5, 6, 7])


class Server:
    """Server with a fixed response, sent a few bytes at a time."""

    def __init__(self, reply: bytes, keep_alive: bool):
        self.connections = self.requests = 0
        self._reply = reply
        self._keep_alive = keep_alive

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError):  # the client has closed the connection
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
                for start in range(0, len(self._reply), 7):
                    writer.write(self._reply[start : start + 7])
                    await asyncio.sleep(0)
                if not self._keep_alive:
                    break
        writer.close()


def run_against(reply: bytes, clients: int, keep_alive: bool = True) -> tuple[LoadResult, Server]:
    """Runs clients against a server that sends `reply`; returns (result, server)."""
    handler = Server(reply, keep_alive)

    async def main() -> LoadResult:
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await run_clients(f"http://127.0.0.1:{port}", WORKLOAD, clients, {})
        finally:
            server.close()

    return asyncio.run(main()), handler


def test_every_prompt_is_sent_once():
    result, server = run_against(COMPLETE, clients=2)
    assert server.requests == len(result.requests) == 3
    assert server.connections == 2
    assert result.output_tokens == 18
    assert sum(request.num_tokens for request in result.requests) == 18
    assert all(0 < request.ttft <= result.seconds for request in result.requests)
    assert all(request.first_token <= request.last_token for request in result.requests)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 429 Too Many\r\n\r\nfull", "429 Too Many"),
        (HEAD + chunks(EVENTS), "before the end of the response"),
        (HEAD + chunks(EVENTS, END), "before the end of the response"),
    ],
)
def test_error_or_truncated_response_is_a_user_error(reply, reason):
    with pytest.raises(UserError, match=reason):
        run_against(reply, clients=1, keep_alive=False)
