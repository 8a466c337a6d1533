"""Memory table: a model's weights, KV memory and speed on this machine.

Memory is computed from `config.json` and the headers of the weight files, without reading weights;
speed is measured with a few layers. If the model has not been downloaded, the config is enough.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ...engine.execution.kv_memory import (
    check_kv_cache_bytes,
    choose_kv_cache_bytes,
    choose_max_seq_len,
    split_kv_memory,
)
from ...engine.scheduling.config import MIN_STATE_SLOTS
from ...kv_storage.int8_rows import KV_CACHE_DTYPES, KvCacheDtype
from ...models.memory import available_memory, total_memory
from ...models.model_size import ModelSize, model_size
from ..parsing.arguments import DEFAULT_BLOCK_SIZE
from .decode_speed import DecodeSpeed

SHORT_CONTEXT = 1024  # context length of the first tokens/s row


@dataclass(frozen=True)
class MemoryEstimate:
    """Memory requirement and token capacity for one KV cache dtype."""

    sizes: Sequence[ModelSize]  # size of the target model, then of the draft model, if any
    kv_cache_bytes: int
    reason: str  # how `kv_cache_bytes` was chosen; empty if set by the user
    num_tokens: int  # KV cache capacity in tokens
    num_state_slots: int
    max_seq_len: int  # maximum tokens of a prompt and its completion

    @classmethod
    def compute(
        cls,
        sizes: Sequence[ModelSize],
        kv_cache_bytes: int | None,
        block_size: int,
        max_num_seqs: int,
        max_model_len: int | None,
        available: int,
    ) -> "MemoryEstimate":
        """Splits the KV memory as `LLM` does; see `LLM` for arguments and errors.

        `available` is the free memory in bytes before the weights are loaded.
        """
        max_seq_len, reason = choose_max_seq_len(max_model_len, sizes), ""
        if kv_cache_bytes is None:
            available = max(0, available - sum(size.weight_bytes for size in sizes))
            kv_cache_bytes, reason = choose_kv_cache_bytes(
                block_size, max_num_seqs, max_seq_len, sizes, available
            )
        else:
            kv_cache_bytes = check_kv_cache_bytes(kv_cache_bytes)
        num_pages, num_slots, slot_pages = split_kv_memory(
            kv_cache_bytes, block_size, max_num_seqs, sizes
        )
        num_tokens = (num_pages - math.ceil(MIN_STATE_SLOTS * slot_pages)) * block_size
        return cls(sizes, kv_cache_bytes, reason, num_tokens, num_slots, max_seq_len)

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
    def weights_fit(self) -> bool:
        return self.weight_bytes <= total_memory()

    @property
    def longest_prompt(self) -> int:
        """Maximum prompt tokens with one output token, which needs no KV memory."""
        return min(self.max_seq_len - 1, self.num_tokens)


def estimate_memory(
    args: argparse.Namespace, folder: Path, draft_folder: Path | None
) -> dict[KvCacheDtype, MemoryEstimate]:
    """Memory estimates by KV cache dtype, from the flags of `check` or `serve`.

    Raises:
        UserError: a folder contains no model, or a flag is incompatible with the model.
    """
    load_format = getattr(args, "load_format", "auto")
    sizes = [model_size(folder, args.tensor_parallel_size, load_format)]
    if draft_folder is not None:
        sizes.append(model_size(draft_folder, 1, load_format))
    options = (
        args.kv_cache_bytes,
        args.block_size or DEFAULT_BLOCK_SIZE,
        args.max_num_seqs,
        args.max_model_len,
        available_memory(),
    )
    return {
        dtype: MemoryEstimate.compute(
            [replace(size, kv_cache_dtype=dtype) for size in sizes], *options
        )
        for dtype in KV_CACHE_DTYPES
    }


def print_memory_table(
    console: Console,
    name: str,
    estimates: Mapping[KvCacheDtype, MemoryEstimate],
    speed: DecodeSpeed | None = None,
) -> None:
    """Prints the table, then notes on the machine's memory and on the figures."""
    console.print(memory_table(name, estimates, speed))
    for line in _notes(estimates, speed is not None):
        console.print(line, markup=False, soft_wrap=True)


def memory_table(
    name: str, estimates: Mapping[KvCacheDtype, MemoryEstimate], speed: DecodeSpeed | None = None
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
    add("context in tokens", lambda estimate: f"{estimate.max_seq_len:,}")
    if not first.weights_fit:
        return table
    add("KV memory", lambda estimate: format_bytes(estimate.kv_cache_bytes))
    if first.state_bytes:
        add("states in KV memory", lambda estimate: f"{estimate.num_state_slots:,}")
    add("tokens in KV memory", lambda estimate: f"{estimate.num_tokens:,}")
    add("longest prompt in tokens", lambda estimate: f"{estimate.longest_prompt:,}")
    if speed is not None:
        longest = min(estimate.longest_prompt for estimate in estimates.values())
        for context in sorted({min(SHORT_CONTEXT, longest), longest}):
            speeds = [_format(speed.tokens_per_second(context, dtype)) for dtype in estimates]
            table.add_row(f"tokens/s after {context:,} tokens", *speeds)
    return table


def _notes(estimates: Mapping[KvCacheDtype, MemoryEstimate], has_speed: bool) -> Iterator[str]:
    first = next(iter(estimates.values()))
    total, available = total_memory(), available_memory()
    yield f"memory: {format_bytes(total)} total, {format_bytes(available)} available"
    if not first.weights_fit:
        yield "the weights do not fit in memory; use a smaller model or lower-bit quantization"
        return
    if first.reason:
        yield f"KV memory: {first.reason}; set --kv-cache-bytes to change it"
    if first.state_bytes:
        yield "states and tokens share the KV memory; the table shows the maximum of each"
    if has_speed:
        yield "tokens/s: one request without draft tokens, predicted from measured layers"
    needed = first.weight_bytes + first.kv_cache_bytes
    if needed > available:
        missing = format_bytes(needed - available)
        yield f"weights and KV memory exceed the available memory by {missing}"


def format_bytes(number: float) -> str:
    """Formats bytes in decimal units: 2.26 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.2f} {unit}" if unit == "GB" else f"{number / size:.1f} {unit}"
    return f"{number:.0f} B"


def _format(tokens_per_second: float) -> str:
    return f"{tokens_per_second:,.1f}" if tokens_per_second < 100 else f"{tokens_per_second:,.0f}"
