"""TensorParallelModel: a sharded model, whose calls run on all ranks.

Rank 0 owns the requests, the scheduler and the sampler. Page and slot indices are identical on all
ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
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
from ...models.parallel.decoder import TensorParallelDecoder
from ...models.parallel.group import Replica, gather_bytes
from ...models.parallel.launch import current_group, get_group
from .disk_tier import fingerprint
from .paged_model import PagedModel, RowKind


@dataclass(eq=False)
class ShardedCheckpoint(Replica):
    """A rank's shard of a checkpoint."""

    args: DecoderConfig  # of the full model
    rank_shard: RankShard
    weights: Any
    tokenizer: Any  # None on workers


def load_sharded(
    name: str, size: int, load_format: str = "auto", mtp: bool = False
) -> tuple[ShardedCheckpoint, Any]:
    """Loads a model's shards on all ranks, which it starts unless launched; see `load_weights`.

    Raises:
        UserError: `size` ranks cannot split the model, or a group of another size exists.
    """
    folder = find_config(name, None)
    with model_errors(f"the model in {folder} cannot be loaded"):
        config = read_config(read_model_config(folder), mtp)
    with model_errors(f"tensor_parallel_size={size} does not fit '{name}'"):
        shard = RankShard(config, 0, size)
    args = name, shard, load_format, mtp, kernels.computes_on_cpu()
    checkpoint = get_group(size).run(_load_shard, *args)
    return checkpoint, checkpoint.tokenizer


def _load_shard(
    name: str, rank_0: RankShard, load_format: str, mtp: bool, on_cpu: bool
) -> ShardedCheckpoint:
    from rich.console import Console  # imported here to keep single-process startup fast

    group = current_group()
    if on_cpu:
        kernels.use_cpu()
    rank, console = group.rank, Console(quiet=True) if group.rank > 0 else None
    with group.agreement():
        loaded = load_weights(name, console, load_format, rank, group.size, rank == 0, mtp)
    return ShardedCheckpoint(rank_0.full_config, replace(rank_0, rank=rank), *loaded)


def make_decoder(
    decoder: type[TensorParallelDecoder],
    checkpoint: ShardedCheckpoint,
    adapters: Sequence[str] = (),
    **options: Any,
) -> TensorParallelDecoder:
    """Builds this rank's shard of a decoder, with LoRA adapters; `options`: see `Decoder`."""
    group, shard = current_group(), checkpoint.rank_shard
    with group.agreement():
        model = decoder(checkpoint.weights, shard, group.comm, **options)
        attach_adapters(model, adapters, shard)
    return model


def _on_all_ranks(name: str) -> Any:
    """A method that calls `PagedModel`'s on all ranks; concatenates the ranks' bytes."""
    return lambda self, *args: current_group().run(_call, self, name, *args)


def _call(model: PagedModel, name: str, *args: Any) -> Any:
    result = getattr(PagedModel, name)(model, *args)
    if isinstance(result, bytes):
        return b"".join(gather_bytes(result, current_group().comm))
    if isinstance(result, mx.array):
        mx.eval(result)  # so that a call ends on all ranks before the next one begins
    return result


class TensorParallelModel(PagedModel, Replica):
    """A rank's shard of a model; see `RankGroup.run`."""

    populate, release = _on_all_ranks("populate"), _on_all_ranks("release")
    logits, features = _on_all_ranks("logits"), _on_all_ranks("features")
    lm_head, read_row = _on_all_ranks("lm_head"), _on_all_ranks("read_row")

    def release_scratch(self) -> None:
        current_group().run(memory.release_free_memory)

    def row_bytes(self, kind: RowKind) -> int:
        return super().row_bytes(kind) * current_group().size

    def write_rows(self, kind: RowKind, indices: Sequence[int], rows: Sequence[memoryview]) -> None:
        current_group().run(_write_shards, self, kind, list(indices), list(map(bytes, rows)))

    def worker_fingerprints(self) -> list[bytes]:
        return current_group().run(_gather_fingerprints, self)[1:]


def _write_shards(
    model: PagedModel, kind: RowKind, indices: Sequence[int], rows: Sequence[bytes]
) -> None:
    size = PagedModel.row_bytes(model, kind)
    start = current_group().rank * size
    shards = [memoryview(row)[start : start + size] for row in rows]
    PagedModel.write_rows(model, kind, indices, shards)


def _gather_fingerprints(model: PagedModel) -> list[bytes]:
    return gather_bytes(fingerprint([model.model]), current_group().comm)
