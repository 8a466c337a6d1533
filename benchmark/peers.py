"""Compares tiny-llm with other systems on the same machine and shapes.

    python -m benchmark.peers --work FOLDER [--llama-python PYTHON] [--torch-python PYTHON] …

Each system runs in a separate process with all cores. Every round measures each metric on all
systems before the next metric, so a temporary slowdown of the machine affects all of them. The
machine's limits are measured between the rounds. The checkpoint has random weights in a real
model's shapes and is created once in --work. See benchmark/README.md for the setup of the peers.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import mlx.core as mx

from benchmark.model_costs import ModelCosts
from tiny_llm import UserError

from .command import benchmark_parser, print_json, run_command
from .gguf_file import write_gguf
from .make_checkpoint import HYBRID_SHAPES, SHAPES, shape_config, write_checkpoint
from .metrics import DEFAULT_METRICS, METRICS, Metric, names
from .peers_plot import write_plot
from .peers_results import OURS, Results
from .peers_table import write_table
from .roofline import (
    ISA_FLAGS,
    Machine,
    ProbeError,
    above_limits,
    build_probe,
    isa_of_kernels,
    usable_threads,
)
from .systems.client import (
    WorkerError,
    WorkerProcess,
    checkpoint_bytes,
    export_once,
)

PEERS = {
    "llama.cpp": "llama_cpp_worker",
    "ik_llama.cpp": "ik_llama_cpp_worker",
    "transformers": "transformers_worker",
    "openvino": "openvino_worker",
    "onnxruntime": "onnxruntime_worker",
    "mlx-lm": "mlx_lm_worker",
}


class Variant(NamedTuple):
    """Weights and activations of tiny-llm."""

    group_size: int = 128
    dtype: str = "bfloat16"
    activation_bits: int = 16


VARIANTS = {
    OURS: Variant(),
    "tiny-llm-8bit": Variant(activation_bits=8),
    "tiny-llm-g64": Variant(64),
    "tiny-llm-g64-8bit": Variant(64, activation_bits=8),
    "tiny-llm-g32": Variant(32),
    "tiny-llm-g32-8bit": Variant(32, activation_bits=8),
    "tiny-llm-float16": Variant(dtype="float16"),
}
BITS = 4
FIRST_ROUND_ONLY = {"mlx-lm"}  # takes seconds per token
GGUF_SYSTEMS = {"llama.cpp", "ik_llama.cpp"}
EXPORTING_SYSTEMS = {"openvino", "onnxruntime"}  # quantize an unquantized checkpoint themselves


class Checkpoints:
    """A model's checkpoints in the systems' formats, created on first use.

    Args:
        file: GGUF file that all systems run instead of a created checkpoint.
    """

    def __init__(self, work: Path, shape: str, file: Path | None = None):
        self._work = work
        self._shape = shape
        self._file = file
        work.mkdir(parents=True, exist_ok=True)

    @property
    def name(self) -> str:
        """Name of the model in the report."""
        return self._file.stem if self._file is not None else f"{self._shape}, random weights"

    def mlx(self, variant: Variant = VARIANTS[OURS]) -> Path:
        """Folder with 4-bit weights, or the GGUF file."""
        suffix = "" if variant.dtype == "bfloat16" else f"-{variant.dtype}"
        name = f"{self._shape}-{BITS}bit-g{variant.group_size}{suffix}"
        return self._file or self._folder(name, BITS, variant)

    def bfloat16(self) -> Path:
        """Folder of an unquantized checkpoint in Hugging Face's format."""
        return self._folder(f"{self._shape}-bf16", None)

    def gguf(self) -> Path:
        """The GGUF file, or one with the 4-bit weights, dequantized and requantized to Q4_0."""
        file = self._file or self._work / f"{self._shape}-Q4_0.gguf"
        if not file.exists():
            write_gguf(self.mlx(), file, "q4_0")
        return file

    def exported(self, system: str, python: str, exact: bool) -> Path:
        """Folder exported by a system: 4-bit weights in groups of 128.

        Args:
            python: an interpreter with the exporter.
            exact: whether activations stay float32.
        """
        name = f"{self._shape}-{system}-int4-g128"
        folder = self._work / (f"{name}-exact" if exact else name)
        export_once(python, PEERS[system], self.bfloat16(), folder, exact)
        return folder

    def _folder(self, name: str, bits: int | None, variant: Variant = VARIANTS[OURS]) -> Path:
        folder = self._work / name
        if not (folder / "model.safetensors.index.json").exists():  # written last
            config = shape_config(self._shape)
            dtype = getattr(mx, variant.dtype)
            write_checkpoint(folder, config, bits, variant.group_size, dtype=dtype)
        return folder


class WorkerPool:
    """The running workers; a failed measurement is not retried."""

    def __init__(self, args: argparse.Namespace, checkpoints: Checkpoints, results: Results):
        self._args = args
        self._checkpoints = checkpoints
        self._results = results
        self._workers: dict[str, WorkerProcess] = {}

    def measure(self, system: str, metric: Metric) -> None:
        """Runs a measurement and adds its time or its failure to the results."""
        if self._results.reason(system, metric) is not None:
            return
        try:
            if metric.kind == "load":
                worker = self._start(system)
                worker.close()
                size = checkpoint_bytes(self._checkpoint(system))
                self._results.add_load(system, worker.ready, size)
                return
            if system not in self._workers:
                self._workers[system] = self._start(system)
                self._results.describe(system, self._workers[system].ready)
            reply = self._workers[system].ask(metric.request, self._args.limit)
            self._results.add(system, metric, reply)
        except WorkerError as error:
            self._workers.pop(system, None)
            self._results.exclude(system, metric, str(error))

    def close(self) -> None:
        """Stops all workers."""
        for worker in self._workers.values():
            worker.close()

    def _checkpoint(self, system: str) -> Path:
        if system == "transformers":
            return self._checkpoints.bfloat16()
        if system in EXPORTING_SYSTEMS:
            return self._checkpoints.exported(system, self._python(system), self._args.exact)
        if system in GGUF_SYSTEMS:
            return self._checkpoints.gguf()
        return self._checkpoints.mlx(VARIANTS.get(system, VARIANTS[OURS]))

    def _python(self, system: str) -> str:
        """Python interpreter in which the system is installed."""
        options = {
            "transformers": self._args.torch_python,
            "llama.cpp": self._args.llama_python,
            "openvino": self._args.openvino_python,
            "onnxruntime": self._args.onnx_python,
        }
        return str(options.get(system, sys.executable))

    def _start(self, system: str) -> WorkerProcess:
        arguments = [str(self._checkpoint(system))]
        if system in VARIANTS:
            arguments += ["--engine", "--activation-bits", str(VARIANTS[system].activation_bits)]
        elif system in GGUF_SYSTEMS:
            bits = ModelCosts.from_folder(self._checkpoints.gguf()).weight_bits
            arguments += ["--weight-bits", str(bits)]
            if system == "llama.cpp":
                arguments += ["--threads", str(usable_threads())]
            else:
                arguments += ["--binary", self._args.ik_llama_bench]
        elif system in EXPORTING_SYSTEMS and self._args.exact:
            arguments.append("--exact")
        return WorkerProcess(self._python(system), PEERS.get(system, "tiny_llm_worker"), arguments)


def run_rounds(args: argparse.Namespace, results: Results, checkpoints: Checkpoints) -> None:
    """Runs all rounds; measures the machine's limits around each."""
    try:
        probe = build_probe(args.work, args.isa)
    except ProbeError as error:
        print(error, file=sys.stderr)
        probe = None
    workers = WorkerPool(args, checkpoints, results)
    started = time.perf_counter()
    try:
        for round_number in range(1, args.rounds + 1):
            if probe is not None:
                results.machines.append(probe())
                show(results.machines[-1])
            for metric in (METRICS[name] for name in args.metrics):
                for system in args.systems:
                    if round_number == 1 or system not in FIRST_ROUND_ONLY:
                        workers.measure(system, metric)
                        latest = results.latest(system, metric)
                        minutes = (time.perf_counter() - started) / 60
                        show(f"{minutes:5.1f} min  round {round_number}  {system:13} {latest}")
        if probe is not None:
            results.machines.append(probe())
    finally:
        workers.close()


def show(text: str | Machine) -> None:
    """Prints progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Runs the command and returns the exit status."""
    parser = benchmark_parser(__doc__)
    add = parser.add_argument
    add(
        "--work",
        type=Path,
        required=True,
        help="folder for cached checkpoints, 2 GB for qwen3-0.6b",
    )
    add("--output", type=Path, help="folder for peers.md, .json and .png (default: --work)")
    add("--shape", choices=[*SHAPES, *HYBRID_SHAPES], default="qwen3-0.6b")
    add("--gguf", type=Path, help="GGUF file for tiny-llm, llama.cpp and ik_llama.cpp")
    add(
        "--systems",
        type=names([*VARIANTS, *PEERS]),
        metavar="NAME,…",
        help="default: all that are available",
    )
    add("--metrics", type=names(METRICS), default=DEFAULT_METRICS, metavar="NAME,…")
    add("--rounds", type=int, default=3)
    add("--limit", type=float, default=120, help="timeout per measurement, in seconds")
    add("--llama-python", default=sys.executable, help="Python interpreter with llama-cpp-python")
    add("--ik-llama-bench", help="ik_llama.cpp's llama-bench; llama-batched-bench beside it")
    add(
        "--torch-python",
        default=sys.executable,
        help="Python interpreter with torch and transformers",
    )
    add("--openvino-python", default=sys.executable, help="Python interpreter with openvino-genai")
    add("--onnx-python", default=sys.executable, help="Python interpreter with onnxruntime-genai")
    add("--exact", action="store_true", help="OpenVINO, ONNX Runtime: float32 activations")
    add("--isa", choices=ISA_FLAGS, default="native", help="instruction set of the measured peaks")
    return run_command("peers", parser.parse_args(), run)


def run(args: argparse.Namespace) -> int:
    """Measures all systems; writes table, data and figure."""
    gguf_readers = {OURS, "tiny-llm-8bit", *GGUF_SYSTEMS}
    if args.systems is None:
        known = gguf_readers if args.gguf else {*PEERS}
        args.systems = [OURS, "tiny-llm-8bit", *(name for name in PEERS if name in known)]
        if args.ik_llama_bench is None:
            args.systems.remove("ik_llama.cpp")
    if args.gguf is not None and (others := set(args.systems) - gguf_readers):
        raise UserError(f"--gguf: {min(others)} does not run GGUF files; omit it in --systems.")
    if "ik_llama.cpp" in args.systems and args.ik_llama_bench is None:
        raise UserError("ik_llama.cpp requires --ik-llama-bench, the path of its llama-bench.")
    checkpoints = Checkpoints(args.work, args.shape, args.gguf)
    costs = ModelCosts.from_folder(checkpoints.mlx())
    metrics = [METRICS[name] for name in args.metrics]
    exact = [system for system, variant in VARIANTS.items() if variant.activation_bits == 16]
    results = Results(checkpoints.name, costs, args.systems, metrics, isa_of_kernels(), exact)
    run_rounds(args, results, checkpoints)
    output = args.output or args.work
    output.mkdir(parents=True, exist_ok=True)
    (output / "peers.json").write_text(
        json.dumps(results.as_json(), indent=1, default=sorted) + "\n"
    )
    print(write_table(results, output / "peers.md"))
    write_plot(results, output / "peers.png")
    return print_json(results.summary(), above_limits(results.above_limits()))


if __name__ == "__main__":
    sys.exit(main())
