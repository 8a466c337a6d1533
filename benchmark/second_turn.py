"""The second turn of a conversation: how long until its first token, and how much was cached.

    python -m benchmark.second_turn --model FOLDER

Two servers take turns: one computes the next turn while it has nothing to do, the other does not. A
thinking model answers a question; what it says after its thoughts is forced to a text, so that
every round has the same lengths. After a pause, as of a person who reads, the next question comes.
Each round begins with words of its own, so that nothing else is cached.
"""

import argparse
import http.client
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from .server_processes import ServerProcess, our_server

PATH = "/v1/chat/completions"
SENTENCE = "Paris is the capital of France, and its largest city. "
QUESTION = {"role": "user", "content": "What is the capital of France?"}
SWITCHES = ("--no-prefix-warmup", "--prefix-warmup")


def ask(url: str, messages: Sequence[dict[str, str]], **fields: Any) -> tuple[float, int]:
    """Seconds from a request to the first token of its answer, and how many tokens were cached."""
    body = {"messages": messages, "temperature": 0, "reasoning_effort": "high", **fields}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=600)
    started = time.perf_counter()
    connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
    first, cached = None, 0
    for line in connection.getresponse():
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        delta = chunk["choices"][0]["delta"] if chunk["choices"] else {}
        if first is None and (delta.get("content") or delta.get("reasoning_content")):
            first = time.perf_counter() - started
        if chunk.get("usage"):
            cached = chunk["usage"]["prompt_tokens_details"]["cached_tokens"]
    connection.close()
    return first or 0.0, cached


def two_turns(url: str, name: str, args: argparse.Namespace) -> tuple[float, int]:
    """The second turn of a conversation that no other resembles; see `ask`."""
    said = SENTENCE * args.sentences
    form = {"type": "json_schema", "json_schema": {"name": "said", "schema": {"enum": [said]}}}
    messages = [{"role": "system", "content": f"{name}. {SENTENCE * args.sentences}"}, QUESTION]
    budget = {"thinking_token_budget": args.thoughts}
    ask(url, messages, response_format=form, **budget)
    time.sleep(args.pause)
    told = [*messages, {"role": "assistant", "content": json.dumps(said)}, QUESTION]
    return ask(url, told, max_tokens=8)


def measure(servers: Sequence[ServerProcess], args: argparse.Namespace) -> list[dict[str, Any]]:
    """The median round of each server."""
    found: list[list[tuple[float, int]]] = [[] for _ in servers]
    for number in range(args.rounds + 1):
        for server, results in zip(servers, found, strict=True):
            with server.running() as url:
                results.append(two_turns(url, f"Round {number}", args))
    return [
        {
            "switch": switch,
            "first_token_ms": 1000 * statistics.median(first for first, _ in results[1:]),
            "cached_tokens": results[-1][1],
        }
        for switch, results in zip(SWITCHES, found, strict=True)
    ]


def main() -> int:
    """Runs the benchmark and prints a table and a JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5, help="besides one that warms up")
    parser.add_argument("--sentences", type=int, default=20, help="of the system and the answer")
    parser.add_argument("--thoughts", type=int, default=100, help="tokens at most")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between the turns")
    args = parser.parse_args()
    servers = [our_server(args.model, switch) for switch in SWITCHES]
    try:
        for server in servers:
            server.pause()
        results = measure(servers, args)
    finally:
        for server in servers:
            server.close()
    table = Table("switch", "first token of the second turn, ms", "cached tokens")
    for one in results:
        table.add_row(one["switch"], f"{one['first_token_ms']:.1f}", str(one["cached_tokens"]))
    Console().print(table)
    print(json.dumps({"model": args.model, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
