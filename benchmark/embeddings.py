"""Embedding throughput compared with sentence-transformers and llama.cpp.

    python -m benchmark.embeddings --work FOLDER [--torch-python P] [--llama-python P]

The weights are random, in Qwen3-Embedding-0.6B's shape, 4-bit or bfloat16. Measurements are
interleaved, and tokenization is not included. The cosine similarity with tiny-llm's bfloat16 vector
shows whether a system computes the same model.
"""

import argparse
import json
import sys
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from .command import benchmark_parser, print_json, run_command
from .gguf_file import write_gguf
from .make_checkpoint import shape_config, write_checkpoint
from .peers import show
from .roofline import usable_threads
from .systems.client import WorkerProcess
from .timing import Times

SHAPE = "qwen3-0.6b"
CASES = ((1, 32), (1, 512), (16, 32), (16, 128))  # (number of texts, tokens per text)
LIMIT_S = 900  # per measurement
MODULES = ("Transformer", "Pooling", "Normalize")
OURS = "tiny-llm, bfloat16"


def write_models(work: Path) -> dict[str, Path]:
    """Writes missing checkpoints; returns their paths by format."""
    paths = {"bf16": work / "embedding-bf16", "4bit": work / "embedding-4bit"}
    for kind, folder in paths.items():
        if not (folder / "modules.json").exists():  # written last: marks a complete checkpoint
            write_checkpoint(folder, shape_config(SHAPE), 4 if kind == "4bit" else None)
            mark_as_embedding_model(folder)
    paths["gguf"] = work / "embedding-q4_0.gguf"
    if not paths["gguf"].exists():
        write_gguf(paths["4bit"], paths["gguf"])
    return paths


def mark_as_embedding_model(folder: Path) -> None:
    """Adds sentence-transformers' config: last-token pooling, normalization."""
    modules = []
    for number, name in enumerate(MODULES):
        path = f"{number}_{name}" if number else ""
        kind = f"sentence_transformers.models.{name}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": kind})
        (folder / path).mkdir(exist_ok=True)
    hidden_size = shape_config(SHAPE)["hidden_size"]
    pooling = {"word_embedding_dimension": hidden_size, "pooling_mode_lasttoken": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(modules))


def start_workers(args: argparse.Namespace, stack: ExitStack) -> dict[str, WorkerProcess]:
    """Starts one worker per system and format; `stack` closes them."""
    paths = {kind: str(path) for kind, path in write_models(args.work).items()}
    ours, threads = (sys.executable, "tiny_llm_worker"), str(usable_threads())
    torch = (args.torch_python, "sentence_transformers_worker")
    llama = (args.llama_python, "llama_cpp_worker")
    commands = {
        OURS: (*ours, [paths["bf16"], "--embed"]),
        "sentence-transformers, bfloat16": (*torch, [paths["bf16"]]),
        "tiny-llm, 4 bits": (*ours, [paths["4bit"], "--embed"]),
        "llama.cpp, Q4_0": (*llama, [paths["gguf"], "--threads", threads]),
    }
    return {
        name: stack.enter_context(closing(WorkerProcess(*command, name=name)))
        for name, command in commands.items()
    }


def main() -> int:
    """Prints tokens per second by system and case; the last line of output is JSON."""
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--work", type=Path, required=True, help="folder for cached checkpoints, 2 GB"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--llama-python", default=sys.executable, help="Python interpreter with llama-cpp-python"
    )
    parser.add_argument(
        "--torch-python",
        default=sys.executable,
        help="Python interpreter with sentence-transformers",
    )
    return run_command("embeddings", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Measures all systems, interleaved, and prints the table."""
    args.work.mkdir(parents=True, exist_ok=True)
    seconds: dict[tuple[str, tuple[int, int]], list[float]] = {}
    vectors: dict[str, np.ndarray] = {}
    with ExitStack() as stack:
        workers = start_workers(args, stack)
        for number in range(args.rounds + 1):
            for case in CASES:
                for name, worker in workers.items():
                    request = {"kind": "embed", "batch": case[0], "tokens": case[1]}
                    result = worker.run(request, LIMIT_S)
                    vectors[name] = np.array(result["vector"])
                    if number > 0:  # the first round warms up
                        seconds.setdefault((name, case), []).append(result["seconds"])
            show(f"round {number} of {args.rounds}")
    print(f"| tokens/s, median (best) | {' | '.join(f'{n} × {t}' for n, t in CASES)} | cosine |")
    print(f"|---|{'---:|' * (len(CASES) + 1)}")
    figures = {}
    for name in workers:
        cells = []
        for case in CASES:
            times, tokens = Times.of(seconds[name, case]), case[0] * case[1]
            figures[f"{name}, {case[0]} x {case[1]}"] = tokens / times.median
            cells.append(f"{tokens / times.median:,.0f} ({tokens / times.minimum:,.0f})")
        cosine = float(vectors[name] @ vectors[OURS])
        print(f"| {name} | {' | '.join(cells)} | {cosine:.4f} |")
    return print_json(figures)


if __name__ == "__main__":
    sys.exit(main())
