"""`python -m tools.course.slow_client`: a slow reader, for day 5.2.

Starts a server and sends two concurrent requests: a large one, with four completions and 20
logprobs per token, and a small one. Repeats the measurement on a new server, but reads the large
response only after the engine has finished both requests. With a bounded output queue, the small
request is unaffected.
"""

import argparse
import http.client
import itertools
import json
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

NUM_TOKENS, NUM_COMPLETIONS = 1500, 4
COMMON = {"prompt": "The KV cache is", "ignore_eos": True, "temperature": 1.0, "stream": True}
SMALL = {**COMMON, "max_tokens": 300}
LARGE = {**COMMON, "max_tokens": NUM_TOKENS, "n": NUM_COMPLETIONS, "logprobs": 20}
RECEIVE_BUFFER = 2**16  # bytes; small, so that the kernel buffers little for a slow client
# `serve` with a send timeout of an hour, to keep a client that reads nothing for minutes.
SERVE = """
import sys
from tiny_llm.cli import serve
from tiny_llm.server.http import uvicorn_protocol
uvicorn_protocol.SEND_TIMEOUT = 3600
sys.exit(serve.main(sys.argv[1:]))
"""


@dataclass
class Result:
    """Measurements of the small and the large response; times in seconds.

    `seconds` and `longest_gap` (between tokens) belong to the small response, `events` (those with
    tokens) and `tokens` to the large one. `memory` is the server's memory growth in megabytes.
    """

    seconds: float
    longest_gap: float
    memory: float
    events: int
    tokens: int


class Server:
    """Context manager that runs `serve` on a free port."""

    def __init__(self, solution: str):
        flags = ["--model", "demo", "--port", "0", "--solution", solution]
        command = [sys.executable, "-c", SERVE, *flags]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if found := re.search(r"listening: http://([\d.]+):(\d+)", line):
                self.address = found[1], int(found[2])
            if "ready: " in line:
                break
        else:
            sys.exit("".join(lines))
        threading.Thread(target=self._process.stderr.read, daemon=True).start()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.terminate()
        self._process.wait()

    def memory(self) -> float:
        """Resident memory in megabytes."""
        command = ["ps", "-o", "rss=", "-p", str(self._process.pid)]
        return int(subprocess.check_output(command, text=True)) / 1024


def send(server: Server, body: dict[str, Any]) -> Any:
    """Sends a request; returns the response after its headers, with the body unread."""
    connection = http.client.HTTPConnection(*server.address)
    connection.sock = socket.socket()
    connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    connection.sock.connect(server.address)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    return connection.getresponse()


def choices(response: Any) -> Iterator[dict[str, Any]]:
    """Yields the choices of a stream's events."""
    for line in response:
        if line.startswith(b"data: {"):
            yield from json.loads(line[6:]).get("choices", ())


def measure(solution: str, reads_immediately: bool) -> Result:
    """Sends `LARGE` and `SMALL` to a new server with `--solution`.

    Unless `reads_immediately`, reads the large response only when the engine is idle.
    """
    counts = [0, 0]  # events, tokens

    def read(response: Any) -> None:
        for choice in choices(response):
            tokens = len((choice["logprobs"] or {}).get("tokens", ()))
            counts[0] += tokens > 0
            counts[1] += tokens

    with Server(solution) as server:
        list(choices(send(server, SMALL)))  # warm-up request
        before = server.memory()
        reader = threading.Thread(target=read, args=[send(server, LARGE)])
        if reads_immediately:
            reader.start()
        start = time.monotonic()
        arrivals = [time.monotonic() for choice in choices(send(server, SMALL))]
        seconds = time.monotonic() - start
        while server_is_busy(server):
            time.sleep(0.1)
        memory = server.memory() - before
        if not reads_immediately:
            reader.start()
        reader.join()
    gaps = [later - earlier for earlier, later in itertools.pairwise(arrivals)]
    return Result(seconds, max(gaps), memory, *counts)


def server_is_busy(server: Server) -> bool:
    """Whether the engine has running requests."""
    connection = http.client.HTTPConnection(*server.address)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return re.search(r"^tiny_llm:num_requests_running\S* 0\.0$", text, re.MULTILINE) is None


def main(argv: list[str] | None = None) -> int:
    """Prints the comparison; exit status 0, or 1 if the slow client lost tokens."""
    parser = argparse.ArgumentParser(prog="slow_client", description=__doc__)
    parser.add_argument(
        "--solution", choices=["mine", "ref"], default="mine", help="code that the server runs"
    )
    args = parser.parse_args(argv)
    print("the large response is                   read at once   read at the end")
    quick, slow = measure(args.solution, True), measure(args.solution, False)
    for title, one, other in (
        ("the small one: seconds", quick.seconds, slow.seconds),
        ("its longest silence, ms", 1e3 * quick.longest_gap, 1e3 * slow.longest_gap),
        ("growth of server memory, MB", quick.memory, slow.memory),
        ("events of the large one", quick.events, slow.events),
        ("its tokens", quick.tokens, slow.tokens),
    ):
        digits = 1 if isinstance(one, float) else 0
        print(f"{title:38} {one:12,.{digits}f}   {other:15,.{digits}f}")
    if slow.tokens == NUM_TOKENS * NUM_COMPLETIONS:
        return 0
    print("tokens are missing, although the client has read the complete response")
    return 1


if __name__ == "__main__":
    sys.exit(main())
