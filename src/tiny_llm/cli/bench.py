"""Throughput and latency on random token ids; the last output line is JSON.

All sequences arrive at once and are batched continuously; with --request-rate, they arrive at
random times. EOS tokens are ignored, so each output has exactly its randomly drawn length.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import mlx.core as mx
from rich.box import SIMPLE
from rich.progress import Progress
from rich.table import Table

from .. import kernels
from ..errors import UserError
from ..sampler import make_sampler
from .backends.batch_runs import BatchRun, open_batch_run, peak_memory
from .backends.local import Checkpoint, open_checkpoint, open_llm
from .open_loop import (
    SLO,
    LengthRange,
    TimestampTokenizer,
    Workload,
    goodput,
    latencies,
    percentile,
    poisson_arrivals,
    run_open_loop,
    summarize,
    synthetic_workload,
)
from .parsing.arguments import (
    ENGINE,
    add_batch_arguments,
    add_flag,
    add_model_arguments,
    check_batch_arguments,
    in_range,
)
from .parsing.command import CommandParser, SafeConsole, console, run_command

WARMUP_TOKENS = 8  # maximum tokens of a warm-up output; enough to run every decode kernel


def main(argv: Sequence[str] | None = None, prog: str = "bench") -> int:
    return run_command(prog, lambda: _bench(make_parser(prog).parse_args(argv)))


def make_parser(prog: str) -> CommandParser:
    parser = CommandParser(prog, __doc__, "tiny_llm.cli.bench")
    add_model_arguments(parser, "bench")
    add_batch_arguments(parser)
    flag = partial(add_flag, parser)
    flag("--num-seqs N", "number of sequences", in_range(1), 16)
    flag("--min-input-len N", "minimum prompt length in tokens", in_range(1), 32)
    flag("--max-input-len N", "maximum prompt length in tokens", in_range(1), 256)
    flag("--min-output-len N", "minimum output length in tokens", in_range(1), 32)
    flag("--max-output-len N", "maximum output length in tokens", in_range(1), 128)
    flag("--warmup N", "number of warmup sequences before the measurement", in_range(0), 1)
    flag("--seed N", "random seed for lengths, token ids and arrival times", in_range(0), 0)
    flag(
        "--request-rate R",
        "mean arrival rate in requests per second; sequences arrive at random times, and the "
        "workload runs once per rate (engine only)",
        in_range(0.01, convert=float),
        nargs="+",
    )
    flag(
        "--goodput NAME:MS",
        "latency bounds per request in milliseconds, for --request-rate, e.g. ttft:200 tpot:50",
        _latency_bound,
        nargs="+",
    )
    return parser


def _latency_bound(text: str) -> tuple[str, float]:
    """Argument type NAME:MS, converted to seconds: "ttft:200" → ("ttft", 0.2)."""
    name, _, milliseconds = text.partition(":")
    if name not in ("ttft", "tpot"):
        raise argparse.ArgumentTypeError(f"must be ttft:MS or tpot:MS, got {text}")
    seconds: float = in_range(0, convert=float)(milliseconds) / 1e3
    return name, seconds


def measure(args: argparse.Namespace, checkpoint: Checkpoint, workload: Workload) -> dict[str, Any]:
    """Runs a workload once; the checkpoint's tokenizer is unused.

    Returns:
        Token counts, duration in seconds, tokens/s, latencies in milliseconds, and peak memory in
        GB (10⁹ bytes).
    """
    tokenizer = TimestampTokenizer()
    run = _open(args, checkpoint, workload, tokenizer)
    mx.reset_peak_memory()
    started = time.perf_counter()
    _run_to_completion(run, len(workload.prompts))
    seconds = time.perf_counter() - started
    prompt, output = workload.prompt_tokens, workload.output_tokens
    assert sum(map(len, tokenizer.sequences)) == output, (
        "every output must have the length drawn by the workload"
    )
    return {
        "num_seqs": len(workload.prompts),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "total_tokens": prompt + output,
        "seconds": round(seconds, 4),
        "prompt_tokens_per_s": round(prompt / seconds, 2),
        "output_tokens_per_s": round(output / seconds, 2),
        "total_tokens_per_s": round((prompt + output) / seconds, 2),
        **latencies(tokenizer.sequences, started),
        "peak_memory_gb": round(peak_memory(run) / 1e9, 4),
    }


def measure_load(
    args: argparse.Namespace, checkpoint: Checkpoint, workload: Workload, rate: float, slo: SLO
) -> dict[str, Any]:
    """Runs a workload on a new engine, with `rate` random arrivals per second.

    Returns:
        Requests and tokens per second, goodput in requests per second, latencies in milliseconds.
    """
    lengths = zip(workload.prompts, workload.output_lens, strict=True)
    llm = open_llm(
        args,
        Checkpoint(checkpoint.name, checkpoint.mlx_model, TimestampTokenizer()),
        max_num_seqs=args.batch_size,
        prefill_step=args.prefill_step,
        max_model_len=max(len(prompt) + output_len for prompt, output_len in lengths),
    )
    llm.reserve()
    arrivals = poisson_arrivals(len(workload.prompts), rate, args.seed)
    requests = run_open_loop(llm, workload, arrivals)
    llm.close()
    seconds = max(request.last_token for request in requests) - requests[0].arrival
    tpot = [request.tpot for request in requests if request.tpot is not None]
    return {
        "request_rate": rate,
        "requests_per_s": round(len(requests) / seconds, 2),
        "output_tokens_per_s": round(workload.output_tokens / seconds, 2),
        "goodput": round(goodput(requests, slo), 2),
        **summarize({"ttft": [request.ttft for request in requests], "tpot": tpot}, percentile),
    }


def _open(
    args: argparse.Namespace, checkpoint: Checkpoint, workload: Workload, tokenizer: Any
) -> BatchRun:
    return open_batch_run(
        args,
        Checkpoint(checkpoint.name, checkpoint.mlx_model, tokenizer),
        workload.prompts,
        workload.output_lens,
        make_sampler(temp=0),
        ignore_eos=True,
    )


def _run_to_completion(run: BatchRun, num_seqs: int) -> None:
    hidden = not console.is_terminal
    with Progress(console=console, transient=True, auto_refresh=False, disable=hidden) as progress:
        task = progress.add_task("sequences", total=num_seqs)
        finished = 0
        while not run.is_done:
            run.step()
            if len(run.outputs) > finished:
                finished = len(run.outputs)
                progress.update(task, completed=finished, refresh=True)


def _bench(args: argparse.Namespace) -> int:
    check_batch_arguments(args)
    if args.request_rate is not None and args.loader != ENGINE:
        raise UserError("--request-rate: only the engine accepts requests during a run; omit it.")
    if args.goodput is not None and args.request_rate is None:
        raise UserError("--goodput requires --request-rate.")
    inputs = LengthRange("input", args.min_input_len, args.max_input_len)
    outputs = LengthRange("output", args.min_output_len, args.max_output_len)
    checkpoint = open_checkpoint(args)
    config = checkpoint.mlx_model.args
    if inputs.high + outputs.high > config.max_position_embeddings:
        raise UserError(
            f"--max-input-len {inputs.high} plus --max-output-len {outputs.high} exceed the "
            f"context length of '{checkpoint.name}', {config.max_position_embeddings} tokens; "
            "lower one of them."
        )
    if args.warmup:
        # Use a different seed so that the measured prompts miss the prefix cache.
        short = LengthRange("output", 1, min(outputs.high, WARMUP_TOKENS))
        warmup = synthetic_workload(args.warmup, inputs, short, config.vocab_size, args.seed + 1)
        _run_to_completion(_open(args, checkpoint, warmup, TimestampTokenizer()), args.warmup)
    workload = synthetic_workload(args.num_seqs, inputs, outputs, config.vocab_size, args.seed)
    result = {
        "model": checkpoint.name,
        "solution": args.solution,
        "loader": args.loader,
        "device": "cpu" if kernels.computes_on_cpu() else "gpu",
        "flash_attn": args.enable_flash_attn,
        "tensor_parallel_size": args.tensor_parallel_size,
        "batch_size": args.batch_size,
        "prefill_step": args.prefill_step,
        "warmup": args.warmup,
        "seed": args.seed,
        "tiny_llm": version("tiny-llm"),
        "mlx": version("mlx"),
    }
    if args.request_rate is None:
        result |= measure(args, checkpoint, workload)
        _print_table(result)
    else:
        slo = SLO(**dict(args.goodput or ()))
        result["loads"] = []
        for rate in args.request_rate:
            with console.status(f"{rate:g} requests per second"):
                result["loads"].append(measure_load(args, checkpoint, workload, rate, slo))
        _print_loads(result["loads"], args.num_seqs)
    print(json.dumps(result))
    return 0


def _print_table(result: dict[str, Any]) -> None:
    table = Table("", "tokens", "tokens/s", title=f"{result['num_seqs']} sequences")
    for kind in ("prompt", "output", "total"):
        tokens, speed = result[f"{kind}_tokens"], result[f"{kind}_tokens_per_s"]
        table.add_row(kind, str(tokens), f"{speed:.1f}")
    latency = Table("ms", "median", "p95", title="latency")
    for label, name in (("time to first token", "ttft_ms"), ("inter-token latency", "itl_ms")):
        pair = (result[f"{name}_median"], result[f"{name}_p95"])
        latency.add_row(label, *("–" if ms is None else f"{ms:.1f}" for ms in pair))
    screen = SafeConsole()
    screen.print(table)
    screen.print(latency)
    screen.print(f"{result['seconds']:.2f} s, peak memory {result['peak_memory_gb']:.3f} GB")


def _print_loads(loads: Sequence[dict[str, Any]], num_seqs: int) -> None:
    table = Table(title=f"{num_seqs} requests per rate; latencies in ms", box=SIMPLE)
    latencies = ("ttft_ms_median", "ttft_ms_p95", "tpot_ms_median", "tpot_ms_p95")
    labels = ("rate", "served", "TTFT", "p95", "TPOT", "p95", "tokens/s", "goodput")
    names = ("request_rate", "requests_per_s", *latencies, "output_tokens_per_s", "goodput")
    for label in labels:
        table.add_column(label, justify="right")
    for load in loads:
        table.add_row(*("–" if load[name] is None else f"{load[name]:.1f}" for name in names))
    SafeConsole().print(table)


if __name__ == "__main__":
    sys.exit(main())
