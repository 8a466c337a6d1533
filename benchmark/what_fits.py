"""Prints the book's table of tokens that fit next to a model's weights.

    python -m benchmark.what_fits

The numbers are those of `tiny-llm check --model` for 4-bit weights in groups of 64.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

from benchmark.make_checkpoint import HYBRID_SHAPES, SHAPES, shape_config
from tiny_llm.cli.memory_table import MemoryEstimate, format_bytes
from tiny_llm.engine.engine_args import EngineArgs
from tiny_llm.kv_storage.int8_rows import KV_CACHE_DTYPES
from tiny_llm.models.checkpoint.dummy import random_checkpoint
from tiny_llm.models.memory import ModelSize, size_of_tree

MEMORIES = (2, 4, 8, 16, 32)  # GB
QUANTIZATION = {"bits": 4, "group_size": 64}


def table() -> Iterator[str]:
    """Yields the lines of the Markdown table."""
    headers = ["model", "weights", "KV per token", "state", *(f"{size} GB" for size in MEMORIES)]
    yield f"| {' | '.join(headers)} |"
    yield f"|---|{'---:|' * (len(headers) - 1)}"
    for name in [*SHAPES, *HYBRID_SHAPES]:
        config = {**shape_config(name), "quantization": QUANTIZATION}
        size = size_of_tree(random_checkpoint(config))  # arrays are lazy, so nothing is allocated
        sizes = [replace(size, kv_cache_dtype=dtype) for dtype in KV_CACHE_DTYPES]
        cells = [
            name,
            format_bytes(size.weight_bytes),
            " / ".join(format_bytes(size.kv_bytes_per_token) for size in sizes),
            format_bytes(size.state_bytes) if size.state_bytes else "",
            *(_tokens(sizes, 10**9 * memory) for memory in MEMORIES),
        ]
        yield f"| {' | '.join(cells)} |"


def _tokens(sizes: Sequence[ModelSize], available: int) -> str:
    """Thousands of tokens that fit, by KV dtype; a dash if the weights do not fit."""
    if sizes[0].weight_bytes > available:
        return "–"
    fits = [MemoryEstimate.compute(EngineArgs(""), [size], available) for size in sizes]
    return " / ".join(f"{fit.num_tokens // 1000:,}k" for fit in fits)


def main() -> int:
    """Prints the table."""
    print("\n".join(table()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
