"""Lightweight load generators for OpenAI-compatible servers on one machine.

Instead of parsing a response, a client counts the lines that begin with `data: {` and looks for the
final event.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tiny_llm import UserError
from tiny_llm.cli.open_loop import RequestTimes, Workload, percentile

READ_BYTES = 2**16
EVENT = b"\ndata: {"
LAST_EVENT = b"\ndata: [DONE]\n"  # unique, because JSON escapes line breaks
LAST_CHUNK = b"\r\n0\r\n\r\n"  # end of a response in chunked transfer encoding
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True)
class LoadResult:
    """Results of a workload, from the first request to the last response."""

    seconds: float
    output_tokens: int
    requests: Sequence[RequestTimes]

    def figures(self) -> dict[str, float]:
        """Throughput and time to first token for the report."""
        ttft = [request.ttft for request in self.requests]
        return {
            "output_tokens_per_s": self.output_tokens / self.seconds,
            "first_token_ms_p50": percentile(ttft, 50) * 1e3,
            "first_token_ms_p95": percentile(ttft, 95) * 1e3,
        }


class Client:
    """Client with a persistent connection; adds the fields `extra` to requests."""

    def __init__(self, url: str, extra: dict[str, Any]):
        self._url = url
        self._extra = extra
        self._connection: Connection | None = None

    async def complete(
        self,
        prompt: Sequence[int],
        length: int,
        due: float | None = None,
        on_events: Callable[[float, int], None] | None = None,
    ) -> RequestTimes:
        """Sends a request to `/v1/completions` and reads its stream to the end.

        Args:
            length: number of output tokens.
            due: scheduled arrival time of an open-loop request; default: now.
            on_events: called with the arrival time and number of new events, one event per token.

        Raises:
            UserError: the server returned an error or closed the stream early.
        """
        body = {"prompt": prompt, "max_tokens": length, "temperature": 0, "stream": True}
        content = json.dumps(body | {"ignore_eos": True, **self._extra}).encode()
        arrival = time.perf_counter() if due is None else due
        reader, status = await self._send(_request("POST", "/v1/completions", content))
        if b" 200 " not in status:
            text = (await reader.read(2000)).decode(errors="replace").rpartition("\r\n\r\n")[2]
            raise UserError(
                f"{self._url} returned {status.decode().strip()}: {text[-300:].strip()}"
            )
        first, tail, has_ended = None, b"", False
        while data := await reader.read(READ_BYTES):
            now = time.perf_counter()
            events = (tail[1 - len(EVENT) :] + data).count(EVENT)
            data = tail + data
            if events and first is None:
                first = now
            if events and on_events is not None:
                on_events(now, events)
            has_ended = has_ended or LAST_EVENT in data
            if has_ended and data.endswith(LAST_CHUNK):
                assert first is not None
                return RequestTimes(arrival, first, now, length)
            tail = data[-len(LAST_EVENT) :]
        raise UserError(f"{self._url} closed the stream before the end of the response.")

    async def _send(self, request: bytes) -> tuple[asyncio.StreamReader, bytes]:
        """Sends a request; returns the response's reader and its status line."""
        is_reused = self._connection is not None
        if self._connection is None:
            self._connection = await _connect(self._url)
        reader, writer = self._connection
        writer.write(request)
        try:
            status = await reader.readline()
        except ConnectionError:
            status = b""
        if is_reused and not status:  # the server has closed the idle connection
            self.close()
            return await self._send(request)
        return reader, status

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection[1].close()
            self._connection = None


async def get_latency(url: str, path: str) -> float:
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
            raise UserError(f"{url}{path} returned {status.decode().strip()}.")
        return time.perf_counter() - started
    finally:
        writer.close()


async def run_clients(
    url: str, workload: Workload, clients: int, extra: dict[str, Any]
) -> LoadResult:
    """Runs a workload closed-loop, with one request in flight per client."""
    pending = list(zip(workload.prompts, workload.output_lens, strict=True))[::-1]
    requests: list[RequestTimes] = []

    async def run_client() -> None:
        client = Client(url, extra)
        try:
            while pending:
                requests.append(await client.complete(*pending.pop()))
        finally:
            client.close()

    started = time.perf_counter()
    await asyncio.gather(*(run_client() for _ in range(clients)))
    seconds = time.perf_counter() - started
    return LoadResult(seconds, workload.output_tokens, requests)


async def run_arrivals(
    url: str, workload: Workload, arrivals: Sequence[float], extra: dict[str, Any]
) -> LoadResult:
    """Runs a workload open-loop; `arrivals` are in seconds after the start."""
    started = time.perf_counter()
    idle: list[Client] = []  # clients that are connected but have no request in flight

    async def send(prompt: Sequence[int], length: int, arrival: float) -> RequestTimes:
        due = started + arrival
        await asyncio.sleep(due - time.perf_counter())
        client = idle.pop() if idle else Client(url, extra)
        times = await client.complete(prompt, length, due)
        idle.append(client)
        return times

    schedule = zip(workload.prompts, workload.output_lens, arrivals, strict=True)
    try:
        requests = await asyncio.gather(*(send(*request) for request in schedule))
    finally:
        for client in idle:
            client.close()
    return LoadResult(time.perf_counter() - started, workload.output_tokens, requests)


async def health_under_load(url: str, workload: Workload, clients: int) -> list[float]:
    """Latencies of `GET /health` under load, with 0.1 s between samples."""
    load = asyncio.ensure_future(run_clients(url, workload, clients, {}))
    seconds = []
    while not load.done():
        seconds.append(await get_latency(url, "/health"))
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
