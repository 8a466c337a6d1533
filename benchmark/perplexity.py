"""Perplexity of a GGUF model with each of the engine's 8-bit options, and in llama.cpp.

    python -m benchmark.perplexity --gguf FILE [--llama-python PYTHON] [--text FILE …]

The default text is Python's bundled documentation (`pydoc_data.topics`).
"""

import argparse
import math
import pydoc_data.topics
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

from tiny_llm import LLM, SamplingParams, UserError, load_weights

from .command import benchmark_parser, print_json, run_command
from .roofline import usable_threads
from .systems.client import WorkerProcess

WINDOW = 1024  # tokens
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "--kv-cache-dtype int8": {"kv_cache_dtype": "int8"},
    "--activation-bits 8": {"activation_bits": 8},
    "both": {"kv_cache_dtype": "int8", "activation_bits": 8},
}


def main() -> int:
    """Runs the command and returns the exit status."""
    parser = benchmark_parser(__doc__)
    parser.add_argument("--gguf", type=Path, required=True)
    parser.add_argument("--text", nargs="+", type=Path, default=[], help="UTF-8 files to predict")
    parser.add_argument(
        "--windows", type=int, default=20, help=f"maximum number of windows of {WINDOW} tokens"
    )
    parser.add_argument("--llama-python", help="Python interpreter with llama-cpp-python")
    return run_command("perplexity", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Prints a table of perplexities, then a line of JSON."""
    if args.windows < 1:
        raise UserError(f"--windows must be at least 1, got {args.windows}.")
    weights, tokenizer = load_weights(str(args.gguf))
    ids = tokenizer.encode(text(args.text))
    if len(ids) < 2:
        raise UserError(f"--text must have at least 2 tokens, got {len(ids)}.")
    windows = [ids[start : start + WINDOW] for start in range(0, len(ids), WINDOW)][: args.windows]
    result = {}
    for name, options in MODES.items():
        llm = LLM((weights, tokenizer), max_num_seqs=1, **options)
        result[name] = perplexity([loss(llm, window) for window in windows], windows)
        show(f"tiny-llm, {name}", result[name], result["default"])
        del llm
    if args.llama_python is not None:
        arguments = [str(args.gguf), "--threads", str(usable_threads())]
        with closing(WorkerProcess(args.llama_python, "llama_cpp_worker", arguments)) as worker:
            losses = [worker.run({"kind": "loss", "ids": window})["loss"] for window in windows]
        result["llama.cpp"] = perplexity(losses, windows)
        show("llama.cpp", result["llama.cpp"], result["default"])
    return print_json(result)


def show(name: str, value: float, default: float) -> None:
    print(f"{name:32} {value:.4f}  {value / default - 1:+.3%}", flush=True)


def text(files: list[Path]) -> str:
    if files:
        return "".join(file.read_text("utf-8") for file in files)
    topics = pydoc_data.topics.topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def loss(llm: LLM, ids: list[int]) -> float:
    """Negative log-likelihood of all tokens but the first."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (output,) = llm.generate([ids], params, use_tqdm=False)
    assert output.prompt_logprobs is not None
    entries = zip(ids[1:], output.prompt_logprobs[1:], strict=True)
    return -sum(entry[token] for token, entry in entries if entry is not None)


def perplexity(losses: list[float], windows: list[list[int]]) -> float:
    return math.exp(sum(losses) / sum(len(window) - 1 for window in windows))


if __name__ == "__main__":
    sys.exit(main())
