"""Latency of short chats and a stream during a long prefill: fcfs vs. fair.

    python -m benchmark.fairness --model FOLDER

A server per policy runs the same workload: a stream, a long prompt that arrives while the stream
decodes, and a client that sends one short chat after another. Reported: the time to first token
of the long prompt and of the chats sent during its prefill; the stream's inter-token latencies
during that prefill; and prompt and output tokens per second of the entire workload. While one
server is measured, the other is paused (SIGSTOP).
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence

from tiny_llm.cli.open_loop import RequestTimes, percentile

from .command import benchmark_parser, print_json, run_command
from .http_clients import Client
from .server_processes import our_server

POLICIES = ("fcfs", "fair")
FIRST_TOKEN_ID, LAST_TOKEN_ID = 100, 4000
TOKENS_BEFORE_PROMPT = 16  # output tokens of the stream before the long prompt is sent


class Load:
    """The workload of one round; its random prompts share no prefix."""

    def __init__(self, url: str, args: argparse.Namespace, seed: int):
        self._url, self._args = url, args
        self._random = random.Random(seed)
        self._is_decoding = asyncio.Event()
        self._arrivals: list[float] = []  # arrival times of the stream's tokens, in seconds

    async def run(self) -> dict[str, float]:
        """Runs the workload; returns latencies in seconds and throughput in tokens per second."""
        args = self._args
        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._complete(args.chat_len, args.stream_tokens, self._record))
                await self._is_decoding.wait()
                prompt = group.create_task(self._complete(args.prompt_len, args.chat_tokens))
                chats = group.create_task(self._chat())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        seconds = time.perf_counter() - started
        long = prompt.result()
        tokens = args.chat_len + args.stream_tokens + args.prompt_len + args.chat_tokens
        tokens += args.chats * (args.chat_len + args.chat_tokens)
        waits = [chat.ttft for chat in chats.result() if chat.arrival < long.first_token]
        events = [now for now in self._arrivals if long.arrival <= now <= long.first_token]
        gaps = [after - before for before, after in itertools.pairwise(events)] or [long.ttft]
        return {
            "seconds": seconds,
            "tokens_per_s": tokens / seconds,
            "long_prompt_ttft": long.ttft,
            "chats": len(waits),
            "chat_ttft_p50": percentile(waits, 50),
            "chat_ttft_p95": percentile(waits, 95),
            "gap_p50": percentile(gaps, 50),
            "gap_p95": percentile(gaps, 95),
            "gap_max": max(gaps),
        }

    async def _chat(self) -> list[RequestTimes]:
        """Sends the short chats, each `chat_interval` seconds after the previous chat's end."""
        requests = []
        for _ in range(self._args.chats):
            await asyncio.sleep(self._args.chat_interval)
            requests.append(await self._complete(self._args.chat_len, self._args.chat_tokens))
        return requests

    def _record(self, now: float, count: int) -> None:
        """Records the arrival time of `count` tokens of the stream."""
        self._arrivals += [now] * count
        if len(self._arrivals) >= TOKENS_BEFORE_PROMPT:
            self._is_decoding.set()

    async def _complete(
        self,
        prompt_len: int,
        max_tokens: int,
        on_events: Callable[[float, int], None] | None = None,
    ) -> RequestTimes:
        """Streams a completion of a random prompt."""
        token_ids = self._random.choices(range(FIRST_TOKEN_ID, LAST_TOKEN_ID), k=prompt_len)
        with contextlib.closing(Client(self._url, {})) as client:
            return await client.complete(token_ids, max_tokens, on_events=on_events)


def show(rounds: dict[str, list[dict[str, float]]]) -> None:
    """Prints the medians over the rounds, and the ratio of the policies' throughputs."""
    print(
        "| policy | long prompt, first token, s | chats | first token p50, s | p95 "
        "| stream's gaps p50, ms | p95 | max | tokens/s |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    medians = {policy: _medians(results) for policy, results in rounds.items()}
    for policy, row in medians.items():
        print(
            f"| {policy} | {row['long_prompt_ttft']:.1f} | {row['chats']:.0f} "
            f"| {row['chat_ttft_p50']:.2f} | {row['chat_ttft_p95']:.2f} "
            f"| {row['gap_p50'] * 1e3:.0f} | {row['gap_p95'] * 1e3:.0f} "
            f"| {row['gap_max'] * 1e3:.0f} | {row['tokens_per_s']:.1f} |"
        )
    if len(medians) == len(POLICIES):
        ratio = medians["fair"]["tokens_per_s"] / medians["fcfs"]["tokens_per_s"]
        print(f"\nfair: {ratio:.3f} × the throughput of fcfs")


def _medians(results: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(row[name] for row in results) for name in results[0]}


def run(args: argparse.Namespace) -> int:
    """Runs all rounds, interleaved, and prints their table."""
    rounds: dict[str, list[dict[str, float]]] = {policy: [] for policy in args.policies}
    with contextlib.ExitStack() as stack:
        servers = {
            policy: stack.enter_context(
                contextlib.closing(our_server(args.model, "--scheduling-policy", policy))
            )
            for policy in args.policies
        }
        for server in servers.values():
            server.pause()
        for seed in range(args.rounds):
            for policy, server in servers.items():
                with server.running() as url:
                    rounds[policy].append(asyncio.run(Load(url, args, seed).run()))
                print(f"{policy}: {rounds[policy][-1]}", file=sys.stderr)
    show(rounds)
    return print_json({"model": args.model, "rounds": rounds})


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--model", default="demo", help="model name or folder (default: demo)")
    add("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    add("--prompt-len", type=int, default=12000, help="length of the long prompt, in tokens")
    add("--stream-tokens", type=int, default=600, help="output tokens of the stream")
    add("--chats", type=int, default=12, help="number of short chats")
    add("--chat-len", type=int, default=50, help="prompt tokens of a chat")
    add("--chat-tokens", type=int, default=64, help="output tokens of a chat")
    add("--chat-interval", type=float, default=2, help="seconds from a chat's end to the next chat")
    add("--rounds", type=int, default=3)
    return run_command("fairness", parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
