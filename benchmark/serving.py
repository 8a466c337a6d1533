"""The engine under load, beside Week 2's batching and llama.cpp.

    python -m benchmark.serving --model FOLDER
    python -m benchmark.serving --model FOLDER --gguf FILE --llama-python PYTHON

Measures throughput, inter-token gaps, prefix cache hits, scheduling overhead and draft tokens. All
requests arrive at once, with fixed output lengths. The systems run in turns, round after round, on
the same requests; the figures are the median round's. The engine runs twice: with the others' batch
size, and with as many requests as fit into the same memory, which is the purpose of paging.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

from tiny_llm import UserError, load_weights
from tiny_llm.cli.batching.workload import Workload

from .roofline import usable_threads
from .serving_runs import (
    ServingOptions,
    bookkeeping,
    prefix_hit,
    serve_with_engine,
    serve_with_week_2,
    speculation,
    summary,
)
from .systems.client import WorkerProcess

LLAMA_SECONDS = 3600  # the first round tries several settings


class LlamaServer:
    """llama.cpp in a worker process.

    Args:
        file: GGUF of the same weights.
        python: interpreter with llama-cpp-python.
    """

    def __init__(self, file: Path, python: str):
        arguments = [str(file), "--threads", str(usable_threads())]
        self._worker = WorkerProcess(python, "llama_cpp_worker", arguments)

    def serve(self, workload: Workload, places: int) -> dict[str, Any]:
        """Throughput on the same requests."""
        reply = self._worker.ask(
            {
                "kind": "serve",
                "prompts": workload.prompts,
                "output_lens": workload.output_lens,
                "places": places,
            },
            LLAMA_SECONDS,
        )
        if "seconds" not in reply:
            raise UserError(f"llama.cpp: {reply}")
        return {**reply, "output_tokens_per_s": workload.output_tokens / reply["seconds"]}

    def close(self) -> None:
        """Stops the worker."""
        self._worker.close()


def compare(args: argparse.Namespace, mlx_model: Any, options: ServingOptions) -> dict[str, Any]:
    """Runs all systems on the same requests, in turns."""
    workload = options.workload(mlx_model.args.vocab_size)
    in_same_memory = dataclasses.replace(options, max_num_seqs=args.max_num_seqs)
    systems = {
        "engine": lambda: serve_with_engine(mlx_model, workload, options),
        "engine, same memory": lambda: serve_with_engine(mlx_model, workload, in_same_memory),
        "week2": lambda: serve_with_week_2(mlx_model, workload, options),
    }
    llama = None
    if args.gguf is not None:
        llama = LlamaServer(args.gguf, args.llama_python)
        systems["llama.cpp"] = lambda: llama.serve(workload, options.batch_size)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
    try:
        for number in range(args.rounds):
            for name, serve in systems.items():
                rounds[name].append(serve())
                rate = rounds[name][-1]["output_tokens_per_s"]
                print(f"round {number + 1}  {name:20}  {rate:8.1f} tokens/s", file=sys.stderr)
    finally:
        if llama is not None:
            llama.close()
    return {name: summary(found) for name, found in rounds.items()}


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Runs all experiments and prints their tables."""
    mlx_model, _ = load_weights(args.model)
    options = ServingOptions(
        args.requests,
        args.min_len,
        args.max_len,
        args.batch_size,
        args.batch_size,
        args.max_num_batched_tokens,
        args.prefill_step,
        args.page_size,
    )
    systems = compare(args, mlx_model, options)
    engine = systems["engine"]
    print(f"{args.requests} requests, {args.batch_size} at a time")
    print("| system | output tokens/s | of the engine's | seconds |")
    print("|---|---:|---:|---:|")
    for name, one in systems.items():
        rate = one["output_tokens_per_s"]
        share = rate / engine["output_tokens_per_s"]
        print(f"| {name} | {rate:.1f} | {share:.2f} | {one['seconds']:.1f} |")
    p50, p95 = (engine[f"gap_ms_{p}_while_prefilling"] for p in ("p50", "p95"))
    print(f"\ngaps while prompts are computed: p50 {p50:.1f} ms, p95 {p95:.1f} ms: {p95 / p50:.2f}")
    share = bookkeeping(mlx_model, options, args.many, args.steps)
    print(
        f"bookkeeping at {args.many} requests: {share['bookkeeping_ms']:.2f} of "
        f"{share['step_ms']:.1f} ms a step, {share['share']:.1%}"
    )
    hit = prefix_hit(mlx_model, options, args.prefix_tokens, args.repeats)
    print(
        f"first token with {hit['cached_tokens']} tokens in the prefix cache: {hit['hit_ms']:.1f} "
        f"ms, cold {hit['cold_ms']:.1f} ms: 1/{hit['ratio']:.1f}"
    )
    guesses = speculation(args.max_tokens)
    print(
        f"the demo model's steps: {guesses['plain_target_steps']}, with its draft "
        f"{guesses['drafts_target_steps']}: {guesses['fewer_steps']:.2f} times fewer"
    )
    return {
        "model": args.model,
        "systems": systems,
        "times_week2": {
            name: one["output_tokens_per_s"] / systems["week2"]["output_tokens_per_s"]
            for name, one in systems.items()
        },
        "gap_p95_over_p50": p95 / p50,
        "bookkeeping": share,
        "prefix_hit": hit,
        "speculation": guesses,
    }


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = parser.add_argument
    add("--model", default="demo", help="name or folder (demo)")
    add("--requests", type=int, default=64)
    add("--min-len", type=int, default=32, help="minimum length of prompts and outputs")
    add("--max-len", type=int, default=256)
    add("--batch-size", type=int, default=16, help="running requests, and size of the KV cache")
    add("--max-num-seqs", type=int, default=32, help="running requests of the second engine run")
    add("--max-num-batched-tokens", type=int, default=128, help="tokens per engine step")
    add("--prefill-step", type=int, default=128, help="chunk size of Week 2")
    add("--page-size", type=int, default=32)
    add("--rounds", type=int, default=3)
    add("--many", type=int, default=64, help="requests, for the scheduling overhead")
    add("--steps", type=int, default=16, help="timed steps of the scheduling overhead")
    add("--prefix-tokens", type=int, default=1024)
    add("--repeats", type=int, default=3, help="timed prefix cache hits")
    add("--max-tokens", type=int, default=80, help="output length with draft tokens")
    add("--gguf", type=Path, help="the same weights for llama.cpp, from `benchmark.peers`")
    add("--llama-python", default=sys.executable, help="interpreter with llama-cpp-python")
    try:
        print(json.dumps(run(parser.parse_args())))
    except UserError as error:
        print(f"serving: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
