"""TensorParallelModel: a sharded model, whose calls run on all ranks.

Rank 0 owns the requests, the scheduler and the sampler, and broadcasts each call. Page and slot
indices are identical on all ranks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ... import kernels
from ...models import load_weights, memory
from ...models.checkpoint.safe_io import model_errors
from ...models.checkpoint.sharding import RankShard
from ...models.families.config import DecoderConfig
from ...models.families.registry import read_config
from ...models.hub import find_config, read_model_config
from ...models.lora_adapters import attach_adapters
from ...models.parallel.decoder import TensorParallelDecoder, TensorParallelMtpDecoder
from ...models.parallel.group import Replica, gather_bytes
from ...models.parallel.launch import current_group, get_group
from .disk_tier import fingerprint
from .paged_model import PagedModel, RowKind


@dataclass(eq=False)
class ShardedCheckpoint(Replica):
    """A rank's shard of a checkpoint."""

    args: DecoderConfig  # of the full model
    shard: Any
    rank_shard: RankShard
    tokenizer: Any  # None on workers


def load_sharded(
    name: str, size: int, load_format: str = "auto", mtp: bool = False
) -> tuple[ShardedCheckpoint, Any]:
    """Loads a model's shards on all ranks; starts the ranks unless launched.

    Args:
        name, load_format, mtp: see `load_weights`, also for errors.

    Raises:
        UserError: the model cannot be split into `size` shards, or this process belongs to a group
            of a different size.
    """
    folder = find_config(name, None)
    with model_errors(f"the model in {folder} cannot be loaded"):
        config = read_config(read_model_config(folder), mtp)
    with model_errors(f"tensor_parallel_size={size} does not fit '{name}'"):
        RankShard(config, 0, size)
    args = name, config, load_format, mtp, kernels.computes_on_cpu()
    checkpoint: ShardedCheckpoint = get_group(size).run(_load_shard, *args)
    return checkpoint, checkpoint.tokenizer


def _load_shard(
    name: str, config: DecoderConfig, load_format: str, mtp: bool, on_cpu: bool
) -> ShardedCheckpoint:
    group = current_group()
    rank, size = group.rank, group.size
    console: Any = None
    if on_cpu:
        kernels.use_cpu()
    if rank > 0:
        from rich.console import Console

        console = Console(quiet=True)
    with group.agreement():
        shard, tokenizer = load_weights(name, console, load_format, rank, size, rank == 0, mtp)
    return ShardedCheckpoint(config, shard, RankShard(config, rank, size), tokenizer)


def make_decoder(
    checkpoint: ShardedCheckpoint, options: Mapping[str, Any], mtp: bool = False
) -> TensorParallelDecoder:
    """Builds this rank's decoder, or MTP layer; `options`: see `Decoder`."""
    decoder = TensorParallelMtpDecoder if mtp else TensorParallelDecoder
    return decoder(checkpoint.shard, checkpoint.rank_shard, current_group().comm, **options)


def attach_sharded(decoder: TensorParallelDecoder, folders: Sequence[str]) -> None:
    """Attaches this rank's shard of LoRA adapters; see `attach_adapters`, also for errors."""
    with current_group().agreement():
        attach_adapters(decoder, folders, decoder.rank_shard)


def _on_all_ranks(name: str) -> Any:
    """Returns a method of rank 0 that calls `PagedModel`'s method on all ranks."""
    return lambda self, *args: current_group().run(_call, self, name, *args)


def _call(model: PagedModel, name: str, *args: Any) -> Any:
    result = getattr(PagedModel, name)(model, *args)
    if isinstance(result, mx.array):
        mx.eval(result)  # so that a call ends on all ranks before the next one begins
    return gather_bytes(result, current_group().comm) if isinstance(result, bytes) else result


class TensorParallelModel(PagedModel, Replica):
    """A rank's shard of a model; see `RankGroup.run`."""

    populate, release = _on_all_ranks("populate"), _on_all_ranks("release")
    logits, features = _on_all_ranks("logits"), _on_all_ranks("features")
    lm_head = _on_all_ranks("lm_head")

    def release_scratch(self) -> None:
        current_group().run(memory.release_free_memory)

    def row_bytes(self, kind: RowKind) -> int:
        return super().row_bytes(kind) * current_group().size

    def read_row(self, kind: RowKind, index: int) -> bytes:
        """Returns the concatenation of all ranks' shards of a page or state."""
        return b"".join(current_group().run(_call, self, "read_row", kind, index))

    def write_rows(self, kind: RowKind, indices: Sequence[int], rows: Sequence[memoryview]) -> None:
        """Splits the rows into shards; each rank writes its own."""
        current_group().run(_write_shards, self, kind, list(indices), list(map(bytes, rows)))

    def worker_fingerprints(self) -> list[bytes]:
        fingerprints: list[bytes] = current_group().run(_gather_fingerprint, self)
        return fingerprints[1:]


def _write_shards(
    model: PagedModel, kind: RowKind, indices: Sequence[int], rows: Sequence[bytes]
) -> None:
    size = PagedModel.row_bytes(model, kind)
    start = current_group().rank * size
    shards = [memoryview(row)[start : start + size] for row in rows]
    PagedModel.write_rows(model, kind, indices, shards)


def _gather_fingerprint(model: PagedModel) -> list[bytes]:
    return gather_bytes(fingerprint([model.model]), current_group().comm)
