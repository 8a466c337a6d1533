"""The clients of `benchmark.http_serving` see whole streams, errors, and streams cut off."""

import asyncio

import pytest

from benchmark.http_clients import LoadResult, StreamTimes, run_clients
from tiny_llm import UserError
from tiny_llm.cli.workload import Workload

HEAD = b"HTTP/1.1 200 OK\r\n\r\n"
WHOLE = HEAD + b'data: {"choices": []}\n\n: keep-alive\n\ndata: [DONE]\n\n'
WORKLOAD = Workload([[1, 2], [3], [4]], [5, 6, 7])


def answers(reply: bytes, clients: int) -> tuple[LoadResult, int]:
    """What the clients say of a server that gives everyone the same reply, and how many asked."""
    asked = 0

    async def reply_to(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async def main() -> LoadResult:
        server = await asyncio.start_server(reply_to, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            return await run_clients(f"http://127.0.0.1:{port}", WORKLOAD, clients, {})
        finally:
            server.close()

    return asyncio.run(main()), asked


def test_every_prompt_is_sent_once():
    result, asked = answers(WHOLE, clients=2)
    assert asked == len(result.streams) == 3
    assert result.output_tokens == 18
    assert all(0 < one.first <= one.total <= result.seconds for one in result.streams)


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (b"HTTP/1.1 429 Too Many\r\n\r\nfull", "429 Too Many"),
        (WHOLE.removesuffix(b"data: [DONE]\n\n"), "before it was finished"),
    ],
)
def test_an_answer_that_is_not_whole_is_an_error(reply, reason):
    with pytest.raises(UserError, match=reason):
        answers(reply, clients=1)


def test_figures():
    streams = [StreamTimes(first / 1000, 1.0) for first in range(101)]
    figures = LoadResult(2.0, 500, streams).figures()
    assert list(figures.values()) == pytest.approx([250, 50, 95])
