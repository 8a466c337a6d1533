"""Memory table: a model's weights, KV memory and speed on this machine.

The table is computed from `config.json` and the headers of the weight files, without reading
weights. If the model has not been downloaded, the config is enough.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import mlx.core as mx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .. import kernels
from ..engine.engine_args import EngineArgs
from ..engine.execution.kv_memory import KvMemory, plan_kv_memory
from ..engine.scheduling.config import MIN_STATE_SLOTS
from ..kv_cache.int8_rows import KV_CACHE_DTYPES, KvCacheDtype
from ..models.memory import available_memory, total_memory
from ..models.model_size import ModelSize, model_size

SHORT_CONTEXT = 1024  # context length of the first tokens/s row
MEASURED_BYTES = 2**27  # maximum weight bytes per measurement; larger than most processor caches
MEASURED_SECONDS = 1.0  # total duration of the measurements


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory requirement and token capacity for one KV cache dtype."""

    sizes: Sequence[ModelSize]  # size of the target model, then of the draft model, if any
    memory: KvMemory
    num_tokens: int  # KV cache capacity in tokens

    @classmethod
    def compute(
        cls, args: EngineArgs, sizes: Sequence[ModelSize], available: int
    ) -> "MemoryEstimate":
        """Plans the KV memory as `LLM` does, with `available` bytes before the weights are loaded.

        Raises:
            UserError: see `plan_kv_memory`.
        """
        left = max(0, available - sum(size.weight_bytes for size in sizes))
        memory = plan_kv_memory(args, sizes, left)
        num_pages = memory.num_pages - math.ceil(MIN_STATE_SLOTS * memory.state_slot_pages)
        return cls(sizes, memory, num_pages * args.block_size)

    @property
    def weight_bytes(self) -> int:
        return sum(size.weight_bytes for size in self.sizes)

    @property
    def kv_bytes_per_token(self) -> int:
        return sum(size.kv_bytes_per_token for size in self.sizes)

    @property
    def state_bytes(self) -> int:
        """Bytes of a recurrent-state slot; 0 for models without recurrent state."""
        return sum(size.state_bytes for size in self.sizes)

    @property
    def is_loadable(self) -> bool:
        return self.weight_bytes <= total_memory()

    @property
    def longest_prompt(self) -> int:
        """Maximum prompt tokens with one output token, which needs no KV memory."""
        return min(self.memory.max_seq_len - 1, self.num_tokens)

    def tokens_per_second(self, context: int, bandwidth: float) -> float:
        """Upper bound on tokens/s for one request without draft tokens.

        `context` is the number of cached tokens; `bandwidth` is in bytes per second.
        """
        target = self.sizes[0]
        states = 2 * target.state_bytes  # each step reads and writes the state
        return bandwidth / (target.step_bytes + states + context * target.kv_bytes_per_token)


def estimate_memory(args: EngineArgs) -> dict[KvCacheDtype, MemoryEstimate]:
    """Memory estimates by KV cache dtype; `args` has the models' paths.

    Raises:
        UserError: a path contains no model, or an option is incompatible with the model.
    """
    sizes = [
        model_size(Path(cast("str", path)), num_ranks, args.load_format)
        for path, num_ranks in ((args.model, args.tensor_parallel_size), (args.draft_model, 1))
        if path is not None
    ]
    available = available_memory()
    return {
        dtype: MemoryEstimate.compute(
            args, [replace(size, kv_cache_dtype=dtype) for size in sizes], available
        )
        for dtype in KV_CACHE_DTYPES
    }


def print_memory_table(
    console: Console,
    name: str,
    estimates: Mapping[KvCacheDtype, MemoryEstimate],
    task: str,
    bandwidth: float | None = None,
) -> None:
    """Prints the table, then notes on the machine's memory and on the figures.

    Decode speeds are shown for the task "generate" if `bandwidth`, in bytes per second, is given.
    """
    bandwidth = bandwidth if task == "generate" else None
    console.print(memory_table(name, estimates, bandwidth))
    for line in _notes(estimates, bandwidth):
        console.print(line, markup=False, soft_wrap=True)


def memory_table(
    name: str, estimates: Mapping[KvCacheDtype, MemoryEstimate], bandwidth: float | None = None
) -> Table:
    first = next(iter(estimates.values()))
    table = Table(title=escape(name), title_justify="left")
    table.add_column("--kv-cache-dtype")
    for dtype in estimates:
        activations = str(first.sizes[0].dtype).removeprefix("mlx.core.")
        table.add_column(f"auto ({activations})" if dtype == "auto" else dtype, justify="right")

    def add(label: str, text: Callable[[MemoryEstimate], str]) -> None:
        table.add_row(label, *map(text, estimates.values()))

    with_draft = " with the draft model" if len(first.sizes) > 1 else ""
    add(f"weights{with_draft}", lambda estimate: format_bytes(estimate.weight_bytes))
    add("KV cache per token", lambda estimate: format_bytes(estimate.kv_bytes_per_token))
    if first.state_bytes:
        add("state per request", lambda estimate: format_bytes(estimate.state_bytes))
    add("context in tokens", lambda estimate: f"{estimate.memory.max_seq_len:,}")
    if not first.is_loadable:
        return table
    add("KV memory", lambda estimate: format_bytes(estimate.memory.num_bytes))
    if first.state_bytes:
        add("states in KV memory", lambda estimate: f"{estimate.memory.num_state_slots:,}")
    add("tokens in KV memory", lambda estimate: f"{estimate.num_tokens:,}")
    add("longest prompt in tokens", lambda estimate: f"{estimate.longest_prompt:,}")
    if bandwidth is not None:
        longest = min(estimate.longest_prompt for estimate in estimates.values())
        for context in sorted({min(SHORT_CONTEXT, longest), longest}):
            add(
                f"tokens/s after {context:,} tokens",
                lambda each, context=context: _format(each.tokens_per_second(context, bandwidth)),  # type: ignore[misc]
            )
    return table


def _notes(
    estimates: Mapping[KvCacheDtype, MemoryEstimate], bandwidth: float | None
) -> Iterator[str]:
    first = next(iter(estimates.values()))
    total, available = total_memory(), available_memory()
    yield f"memory: {format_bytes(total)} total, {format_bytes(available)} available"
    if not first.is_loadable:
        yield "the weights do not fit in memory; use a smaller model or lower-bit quantization"
        return
    if first.memory.reason:
        yield f"KV memory: {first.memory.reason}; set --kv-cache-bytes to change it"
    if first.state_bytes:
        yield "states and tokens share the KV memory; the table shows the maximum of each"
    if bandwidth is not None:
        speed = f"{bandwidth / 1e9:.1f} GB/s"
        yield f"tokens/s: upper bound for one request at the measured memory bandwidth of {speed}"
    needed = first.weight_bytes + first.memory.num_bytes
    if needed > available:
        missing = format_bytes(needed - available)
        yield f"weights and KV memory exceed the available memory by {missing}"


def measure_bandwidth(num_bytes: int) -> float | None:
    """Memory bandwidth of a 4-bit matrix-vector product in bytes per second.

    Returns None if the extension is not built or does not run on the default device.

    Args:
        num_bytes: weight bytes that a decoding step of the model reads.
    """
    if not kernels.is_built() or not kernels.runs_on_default_device():
        return None
    rows, I, group_size = max(kernels.prepack_rows(), 1), 4096, 64
    row_bytes = I // 2 + I // group_size * 4
    blocks = max(1, min(num_bytes, MEASURED_BYTES) // row_bytes // rows)

    def zeros(width: int, dtype: mx.Dtype) -> mx.array:
        shape = (blocks, width, rows) if rows > 1 else (blocks, width)
        return mx.zeros(shape, dtype)

    weight = zeros(I // 8, mx.uint32)
    scales, biases = (zeros(I // group_size, mx.bfloat16) for _ in range(2))
    x = mx.ones((1, I), mx.bfloat16)
    mx.eval(weight, scales, biases, x)
    seconds: list[float] = []
    end = time.perf_counter() + MEASURED_SECONDS
    while not seconds or time.perf_counter() < end:
        started = time.perf_counter()
        mx.eval(kernels.quantized_matmul(scales, biases, group_size, 4, x, weight))
        seconds.append(time.perf_counter() - started)
    return (weight.nbytes + scales.nbytes + biases.nbytes) / min(seconds)


def format_bytes(number: float) -> str:
    """Formats bytes in decimal units: 2.26 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}" if unit == "GB" else f"{number / size:.1f} {unit}"
    return f"{number:.0f} B"


def _format(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.1f}" if tokens_per_second < 100 else f"{tokens_per_second:,.0f}"
