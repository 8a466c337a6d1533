"""Lightweight load generators for OpenAI servers on the same machine.

A client sends a request and reads all available bytes at a time. Between reads it searches only for
two events: the first line that begins with `data:`, and the last one.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tiny_llm import UserError
from tiny_llm.cli.batching.open_loop import RequestTimes, percentile
from tiny_llm.cli.batching.workload import Workload

LARGEST_READ = 2**16  # bytes
LAST_EVENT = b"\ndata: [DONE]\n"  # JSON escapes line breaks
LAST_CHUNK = b"\r\n0\r\n\r\n"  # end of a chunked response
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class LoadResult:
    """Results of a workload.

    Attributes:
        seconds: time from the first request to the end of the last response.
        output_tokens: total number of output tokens.
        requests: times of each request.
    """

    seconds: float
    output_tokens: int
    requests: Sequence[RequestTimes]

    def figures(self) -> dict[str, float]:
        """Reported figures."""
        ttft = [one.ttft for one in self.requests]
        return {
            "output_tokens_per_s": self.output_tokens / self.seconds,
            "first_token_ms_p50": percentile(ttft, 50) * 1e3,
            "first_token_ms_p95": percentile(ttft, 95) * 1e3,
        }


class Client:
    """Client with a persistent connection, as in the official libraries.

    Args:
        url: server.
        extra: server-specific fields of each request.
    """

    def __init__(self, url: str, extra: dict[str, Any]):
        self._url = url
        self._extra = extra
        self._connection: Connection | None = None

    async def complete(
        self, prompt: Sequence[int], length: int, due: float | None = None
    ) -> RequestTimes:
        """Sends a request to `/v1/completions` and reads its stream to the end.

        Args:
            prompt: token ids.
            length: number of output tokens.
            due: arrival time of an open-loop request; by default, now.

        Raises:
            UserError: an error response, or the stream ended early.
        """
        body = {"prompt": prompt, "max_tokens": length, "temperature": 0, "stream": True}
        content = json.dumps(body | {"ignore_eos": True, **self._extra}).encode()
        arrival = time.perf_counter() if due is None else due
        reader, status = await self._ask(_request("POST", "/v1/completions", content))
        if b" 200 " not in status:
            text = (await reader.read(2000)).decode(errors="replace")
            raise UserError(f"{self._url} answers {status.decode().strip()}: {text[-300:]}")
        first, tail, has_ended = None, b"", False
        while data := await reader.read(LARGEST_READ):
            now = time.perf_counter()
            data = tail + data
            if first is None and b"\ndata:" in data:
                first = now
            has_ended = has_ended or LAST_EVENT in data
            if has_ended and data.endswith(LAST_CHUNK):
                assert first is not None
                return RequestTimes(arrival, first, now, length)
            tail = data[-len(LAST_EVENT) :]
        raise UserError(f"{self._url} closed the stream before the end of the response.")

    async def _ask(self, request: bytes) -> tuple[asyncio.StreamReader, bytes]:
        """Sends a request; returns the response's reader and its status line."""
        is_used = self._connection is not None
        if self._connection is None:
            self._connection = await _connect(self._url)
        reader, writer = self._connection
        writer.write(request)
        try:
            status = await reader.readline()
        except ConnectionError:
            status = b""
        if is_used and not status:  # the server closed the idle connection
            self.close()
            return await self._ask(request)
        return reader, status

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


async def get_seconds(url: str, path: str) -> float:
    """Latency of a GET on a new connection.

    Raises:
        OSError: the server is unreachable.
        UserError: the status is not 200.
    """
    started = time.perf_counter()
    reader, writer = await _connect(url)
    try:
        writer.write(_request("GET", path, b""))
        status = await reader.readline()
        if b" 200 " not in status:
            raise UserError(f"{url}{path} answers {status.decode().strip()}.")
        return time.perf_counter() - started
    finally:
        writer.close()


async def run_clients(
    url: str, workload: Workload, clients: int, extra: dict[str, Any]
) -> LoadResult:
    """Runs a workload with closed-loop clients: each sends its next prompt after a response.

    Args:
        url: server.
        workload: prompts as token ids, and output lengths.
        clients: number of concurrent clients.
        extra: server-specific fields of each request.
    """
    waiting = list(zip(workload.prompts, workload.output_lens, strict=True))[::-1]
    requests: list[RequestTimes] = []

    async def ask() -> None:
        client = Client(url, extra)
        try:
            while waiting:
                requests.append(await client.complete(*waiting.pop()))
        finally:
            client.close()

    started = time.perf_counter()
    await asyncio.gather(*(ask() for _ in range(clients)))
    seconds = time.perf_counter() - started
    return LoadResult(seconds, workload.output_tokens, requests)


async def run_arrivals(
    url: str, workload: Workload, arrivals: Sequence[float], extra: dict[str, Any]
) -> LoadResult:
    """Runs a workload open-loop: each prompt is sent at its arrival time.

    Args:
        url: server.
        workload: prompts as token ids, and output lengths.
        arrivals: arrival time of each prompt, in seconds after the first.
        extra: server-specific fields of each request.
    """
    started = time.perf_counter()
    free: list[Client] = []  # clients with an idle connection

    async def ask(prompt: Sequence[int], length: int, arrival: float) -> RequestTimes:
        due = started + arrival
        await asyncio.sleep(due - time.perf_counter())
        client = free.pop() if free else Client(url, extra)
        times = await client.complete(prompt, length, due)
        free.append(client)
        return times

    given = zip(workload.prompts, workload.output_lens, arrivals, strict=True)
    try:
        requests = await asyncio.gather(*(ask(*request) for request in given))
    finally:
        for client in free:
            client.close()
    return LoadResult(time.perf_counter() - started, workload.output_tokens, requests)


async def health_under_load(url: str, workload: Workload, clients: int) -> list[float]:
    """Latencies of `GET /health`, ten times per second, while clients stream."""
    load = asyncio.ensure_future(run_clients(url, workload, clients, {}))
    seconds = []
    while not load.done():
        seconds.append(await get_seconds(url, "/health"))
        await asyncio.sleep(0.1)
    load.result()
    return seconds


async def _connect(url: str) -> Connection:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


def _request(method: str, path: str, content: bytes) -> bytes:
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content
