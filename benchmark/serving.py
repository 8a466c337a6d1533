"""The engine under load, compared with Week 2's batching and llama.cpp.

    python -m benchmark.serving --model FOLDER [--gguf FILE --llama-python PYTHON]

All requests arrive at once, with fixed output lengths. Every round runs the same requests on all
systems; the figures are those of the median round. The engine runs twice: with the other systems'
batch size, and with as many requests as fit into the same memory, where paging should pay off.
"""

import argparse
import dataclasses
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from tiny_llm import load_weights
from tiny_llm.cli.open_loop import Workload

from .command import benchmark_parser, print_json, run_command
from .roofline import usable_threads
from .serving_runs import (
    ServingOptions,
    prefix_hit,
    scheduling_overhead,
    serve_with_engine,
    serve_with_week_2,
    speculation,
    summary,
)
from .systems.client import WorkerProcess

LLAMA_TIMEOUT_S = 3600  # long, because the first round tries several settings


def serve_with_llama_cpp(
    worker: WorkerProcess, workload: Workload, num_slots: int
) -> dict[str, Any]:
    """Runs the workload with `num_slots` concurrent requests; returns its throughput."""
    result = worker.run(
        {
            "kind": "serve",
            "prompts": workload.prompts,
            "output_lens": workload.output_lens,
            "num_slots": num_slots,
        },
        LLAMA_TIMEOUT_S,
    )
    return {**result, "output_tokens_per_s": workload.output_tokens / result["seconds"]}


def compare(args: argparse.Namespace, mlx_model: Any, options: ServingOptions) -> dict[str, Any]:
    """Runs all systems on the same requests, interleaved."""
    workload = options.workload(mlx_model.args.vocab_size)
    in_same_memory = dataclasses.replace(options, max_num_seqs=args.max_num_seqs)
    systems = {
        "engine": lambda: serve_with_engine(mlx_model, workload, options),
        "engine, same memory": lambda: serve_with_engine(mlx_model, workload, in_same_memory),
        "week2": lambda: serve_with_week_2(mlx_model, workload, options),
    }
    with ExitStack() as stack:
        if args.gguf is not None:
            arguments = [str(args.gguf), "--threads", str(usable_threads())]
            worker = WorkerProcess(args.llama_python, "llama_cpp_worker", arguments)
            stack.enter_context(closing(worker))
            systems["llama.cpp"] = lambda: serve_with_llama_cpp(
                worker, workload, options.batch_size
            )
        rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in systems}
        for number in range(args.rounds):
            for name, serve in systems.items():
                rounds[name].append(serve())
                rate = rounds[name][-1]["output_tokens_per_s"]
                print(f"round {number + 1}  {name:20}  {rate:8.1f} tokens/s", file=sys.stderr)
    return {name: summary(results) for name, results in rounds.items()}


def run(args: argparse.Namespace) -> int:
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
    print("| system | output tokens/s | vs. engine | seconds |")
    print("|---|---:|---:|---:|")
    for name, result in systems.items():
        rate = result["output_tokens_per_s"]
        ratio = rate / engine["output_tokens_per_s"]
        print(f"| {name} | {rate:.1f} | {ratio:.2f} | {result['seconds']:.1f} |")
    p50, p95 = (engine[f"gap_ms_{p}_while_prefilling"] for p in ("p50", "p95"))
    gap_ratio = p95 / p50 if p50 else None
    if gap_ratio is None:
        print("\nno step mixed prefills with decoding")
    else:
        print(
            f"\ninter-token gaps during prefills: p50 {p50:.1f} ms, p95 {p95:.1f} ms, "
            f"ratio {gap_ratio:.2f}"
        )
    overhead = scheduling_overhead(mlx_model, options, args.many, args.steps)
    print(
        f"scheduling overhead at {args.many} requests: {overhead['overhead_ms']:.2f} of "
        f"{overhead['step_ms']:.1f} ms per step, {overhead['share']:.1%}"
    )
    hit = prefix_hit(mlx_model, options, args.prefix_tokens, args.repeats)
    print(
        f"time to first token with {hit['cached_tokens']} cached tokens: {hit['hit_ms']:.1f} ms; "
        f"without: {hit['cold_ms']:.1f} ms, {hit['ratio']:.1f} times as long"
    )
    speculative = speculation(args.max_tokens)
    print(
        f"demo model steps: {speculative['plain_target_steps']} without its draft model, "
        f"{speculative['draft_target_steps']} with it, a ratio of {speculative['step_ratio']:.2f}"
    )
    return print_json(
        {
            "model": args.model,
            "systems": systems,
            "times_week2": {
                name: result["output_tokens_per_s"] / systems["week2"]["output_tokens_per_s"]
                for name, result in systems.items()
            },
            "gap_p95_over_p50": gap_ratio,
            "scheduling_overhead": overhead,
            "prefix_hit": hit,
            "speculation": speculative,
        }
    )


def main() -> int:
    """Runs the command; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add("--model", default="demo", help="model name or folder (default: demo)")
    add("--requests", type=int, default=64)
    add("--min-len", type=int, default=32, help="minimum length of prompts and outputs, in tokens")
    add("--max-len", type=int, default=256)
    add(
        "--batch-size",
        type=int,
        default=16,
        help="maximum running requests; also sizes the KV cache",
    )
    add(
        "--max-num-seqs",
        type=int,
        default=32,
        help="maximum running requests in the second engine run",
    )
    add("--max-num-batched-tokens", type=int, default=128, help="maximum tokens per engine step")
    add("--prefill-step", type=int, default=128, help="tokens per prefill chunk of Week 2")
    add("--page-size", type=int, default=32)
    add("--rounds", type=int, default=3)
    add("--many", type=int, default=64, help="number of requests for timing the scheduler")
    add("--steps", type=int, default=16, help="number of steps for timing the scheduler")
    add("--prefix-tokens", type=int, default=1024)
    add("--repeats", type=int, default=3, help="number of timed prefix cache hits")
    add("--max-tokens", type=int, default=80, help="output length with a draft model, in tokens")
    add("--gguf", type=Path, help="GGUF file with the same weights, from `benchmark.peers`")
    add("--llama-python", default=sys.executable, help="Python interpreter with llama-cpp-python")
    return run_command("serving", parser.parse_args(), run)


if __name__ == "__main__":
    sys.exit(main())
