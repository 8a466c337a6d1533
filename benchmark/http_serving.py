"""HTTP server compared with in-process `LLM` and llama.cpp's server.

    python -m benchmark.http_serving --model FOLDER [--llama-server BINARY --gguf FILE]

Every round runs the same requests on all systems: prompts of token ids with fixed output lengths.
By default, clients are closed-loop. With --request-rate, requests arrive at random times instead,
identical for all systems. Random arrivals are fairer to the server: a closed-loop client's next
request reaches the server after the next step has begun, whereas a loop around `LLM` adds it before
that step. Figures are medians over the rounds. A missing --gguf file is written from the model.
Startup time and memory are measured on the demo model.
"""

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from tiny_llm import LLM, SamplingParams, UserError
from tiny_llm.cli.open_loop import (
    LengthRange,
    RequestTimes,
    Workload,
    percentile,
    poisson_arrivals,
    run_open_loop,
    synthetic_workload,
)
from tiny_llm.models import find_model

from .command import benchmark_parser, print_json, run_command
from .gguf_file import write_gguf
from .http_clients import LoadResult, health_under_load, run_arrivals, run_clients
from .roofline import usable_threads
from .server_processes import ServerProcess, llama_server, our_server

DEMO = "demo"
DEMO_VOCABULARY = 4000  # token ids below this decode to ordinary text
LLAMA_FIELDS = {"cache_prompt": False}
Runs = dict[str, Callable[[Workload, int], LoadResult]]


class InProcess:
    """In-process `LLM` with the server's defaults."""

    def __init__(self, model: str, max_num_seqs: int):
        self._llm = LLM(model, max_num_seqs=max_num_seqs)

    def run(self, workload: Workload, clients: int) -> LoadResult:
        """Runs all prompts with `clients` in flight."""
        pending = list(zip(workload.prompts, workload.output_lens, strict=True))[::-1]
        requests: dict[str, RequestTimes] = {}

        def send() -> None:
            if pending:
                prompt, length = pending.pop()
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                now = time.perf_counter()
                requests[self._llm.add_request(prompt, params)] = RequestTimes(now)

        started = time.perf_counter()
        for _ in range(clients):
            send()
        while self._llm.has_unfinished_requests:
            for output in self._llm.step():
                requests[output.request_id].record(time.perf_counter(), len(output.token_ids))
                if output.finish_reason is not None:
                    send()
        seconds = time.perf_counter() - started
        return LoadResult(seconds, workload.output_tokens, list(requests.values()))

    def run_arrivals(self, workload: Workload, arrivals: Sequence[float]) -> LoadResult:
        """Sends all prompts at their arrival times; see `run_open_loop`."""
        started = time.perf_counter()
        requests = run_open_loop(self._llm, workload, arrivals)
        return LoadResult(time.perf_counter() - started, workload.output_tokens, requests)


def compare(args: argparse.Namespace, vocab_size: int) -> dict[str, Any]:
    """Throughput and time to first token by system and number of clients."""
    max_clients, rate = max(args.clients), args.request_rate
    max_num_seqs = max(32, max_clients)

    def run_in_process(workload: Workload, clients: int) -> LoadResult:
        if rate is None:
            return in_process.run(workload, clients)
        return in_process.run_arrivals(workload, _arrivals(workload, rate))

    def over_http(
        server: ServerProcess, fields: dict[str, Any], workload: Workload, clients: int
    ) -> LoadResult:
        with server.running() as url:
            if rate is None:
                return asyncio.run(run_clients(url, workload, clients, fields))
            return asyncio.run(run_arrivals(url, workload, _arrivals(workload, rate), fields))

    with ExitStack() as stack:
        ours = stack.enter_context(
            closing(our_server(args.model, "--max-num-seqs", str(max_num_seqs)))
        )
        ours.pause()
        in_process = InProcess(args.model, max_num_seqs)
        runs: Runs = {"LLM": run_in_process, "serve": partial(over_http, ours, {})}
        if args.llama_server is not None:
            command = args.llama_server, args.gguf, max_clients, 2 * args.max_len, usable_threads()
            peer = stack.enter_context(closing(llama_server(*command)))
            peer.pause()
            runs["llama-server"] = partial(over_http, peer, LLAMA_FIELDS)
        measured = _measure(args, runs, vocab_size)
        workload = _workload(args, 16, vocab_size, seed=10_000)
        with ours.running() as url:
            health = asyncio.run(health_under_load(url, workload, 16))
    figures = {system: _medians(rounds) for system, rounds in measured.items()}
    return {"systems": figures, "health_ms_p99": percentile(health, 99) * 1e3}


def _measure(args: argparse.Namespace, runs: Runs, vocab_size: int) -> dict[str, Any]:
    """Results of each round, by system, then by number of clients."""
    measured: dict[str, Any] = {name: {n: [] for n in args.clients} for name in runs}
    for run in runs.values():
        run(_workload(args, 1, vocab_size, seed=0), 1)  # warm-up
    for number in range(args.rounds):
        for clients in args.clients:
            # New prompts each time, to avoid prefix cache hits.
            workload = _workload(args, clients, vocab_size, seed=1 + 100 * number + clients)
            for name, run in runs.items():
                figures = run(workload, clients).figures()
                measured[name][clients].append(figures)
                rate = f"{figures['output_tokens_per_s']:8.1f} tokens/s"
                print(f"round {number + 1}  {clients:3} clients  {name:12} {rate}", file=sys.stderr)
    return measured


def _workload(args: argparse.Namespace, clients: int, vocab_size: int, seed: int) -> Workload:
    inputs, outputs = (
        LengthRange(kind, args.min_len, args.max_len) for kind in ("input", "output")
    )
    num = clients * args.requests_per_client
    return synthetic_workload(num, inputs, outputs, vocab_size, seed)


def _arrivals(workload: Workload, rate: float) -> Sequence[float]:
    """Arrival times in seconds after the first arrival, identical for every system."""
    num = len(workload.prompts)
    return poisson_arrivals(num, rate, seed=num)


def _medians(rounds: dict[int, list[dict[str, float]]]) -> dict[int, dict[str, float]]:
    return {
        clients: {name: statistics.median(run[name] for run in runs) for name in runs[0]}
        for clients, runs in rounds.items()
    }


def startup_and_memory(args: argparse.Namespace) -> dict[str, float]:
    """Measures the demo model's startup time and its memory growth per request."""
    seconds = []
    for _ in range(1 + args.starts):  # the first start, not timed, fills the page cache
        server = our_server(DEMO)
        seconds.append(server.ready_seconds)
        server.close()
    lengths = LengthRange("input", 4, 16), LengthRange("output", 2, 6)
    resident = []
    with closing(our_server(DEMO)) as server:
        for number in range(1 + args.thousands):
            workload = synthetic_workload(1000, *lengths, DEMO_VOCABULARY, seed=number)
            asyncio.run(run_clients(server.url, workload, 16, {}))
            resident.append(server.resident_bytes / 2**20)
    return {
        "ready_s": statistics.median(seconds[1:]),
        "ready_s_best": min(seconds[1:]),
        "resident_mb_after_1000": resident[0],
        "mb_per_1000_requests": (resident[-1] - resident[0]) / args.thousands,
    }


def show(result: dict[str, Any]) -> None:
    """Prints the table of throughput and latency, then startup time and memory."""
    systems = result["systems"]
    print("| clients | system | output tokens/s | vs. `LLM` | first token p50, ms | p95, ms |")
    print("|---:|---|---:|---:|---:|---:|")
    for clients, baseline in systems["LLM"].items():
        for name, figures in systems.items():
            rate, p50, p95 = figures[clients].values()
            ratio = rate / baseline["output_tokens_per_s"]
            print(f"| {clients} | {name} | {rate:.1f} | {ratio:.3f} | {p50:.0f} | {p95:.0f} |")
    print(f"\n/health latency while 16 clients stream: p99 {result['health_ms_p99']:.1f} ms")
    demo = result["demo"]
    print(
        f"demo: ready after {demo['ready_s']:.2f} s (best {demo['ready_s_best']:.2f}); "
        f"{demo['resident_mb_after_1000']:.0f} MB resident after 1,000 requests, "
        f"{demo['mb_per_1000_requests']:.2f} MB more per further 1,000"
    )


def run(args: argparse.Namespace) -> int:
    """Runs all experiments and prints their tables."""
    folder = find_model(args.model, Console(stderr=True))
    config = json.loads((folder / "config.json").read_text())
    vocab_size = DEMO_VOCABULARY if args.model == DEMO else config["vocab_size"]
    if args.llama_server is not None:
        if args.gguf is None:
            raise UserError("--llama-server requires --gguf; the file is written if missing.")
        if not args.gguf.exists():
            write_gguf(folder, args.gguf, with_vocabulary=True)
    result = {"model": args.model, **compare(args, vocab_size), "demo": startup_and_memory(args)}
    show(result)
    return print_json(result)


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--model", default=DEMO, help="model folder with a tokenizer (default: demo)")
    add("--clients", type=int, nargs="+", default=[1, 4, 16, 64])
    add("--requests-per-client", type=int, default=2)
    add("--request-rate", type=float, help="requests per second; selects open-loop arrivals")
    add("--min-len", type=int, default=32, help="minimum length of prompts and outputs, in tokens")
    add("--max-len", type=int, default=128)
    add("--rounds", type=int, default=3)
    add("--starts", type=int, default=3, help="number of timed server starts")
    add(
        "--thousands",
        type=int,
        default=2,
        help="requests sent to measure memory growth, in thousands",
    )
    add("--llama-server", help="path of llama.cpp's server binary")
    add("--gguf", type=Path, help="GGUF file for llama.cpp; created if it does not exist")
    return run_command("http_serving", parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
