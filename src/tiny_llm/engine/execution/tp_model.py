"""TensorParallelModel: rank 0 of a sharded model, which broadcasts each step.

Rank 0 holds the requests, the scheduler and the sampler. The other ranks receive the arguments of
`PagedModel.logits` and write the same slots of their own pages and states.
"""

import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from ... import kernels
from ...errors import UserError, check_int
from ...models import ModelError, load_weights, memory
from ...models.checkpoint.safe_io import model_errors
from ...models.checkpoint.sharding import RankShard
from ...models.families.config import DecoderConfig
from ...models.families.registry import read_config
from ...models.gguf.model_files import read_model_config
from ...models.heads.mtp import MtpDecoder
from ...models.hub import find_config
from ...models.parallel.channel import Buffer
from ...models.parallel.decoder import TensorParallelDecoder
from ...models.parallel.default_group import get_default_group
from ...models.parallel.group import RankGroup
from .paged_model import PagedModel, RowKind, Span

if TYPE_CHECKING:
    from rich.console import Console

WORKER = "tiny_llm.engine.execution.tp_worker"


@dataclass(frozen=True, eq=False)
class ShardedCheckpoint:
    """A checkpoint sharded across all ranks; stands in for a loaded model."""

    args: DecoderConfig  # of the full model
    shard: Any
    rank_shard: RankShard
    group: RankGroup
    key: int  # the checkpoint's id in messages to the other ranks

    def __getattr__(self, name: str) -> Any:
        return getattr(self.shard, name)


def load_sharded(
    name: str,
    size: int,
    load_format: str = "auto",
    console: "Console | None" = None,
    mtp: bool = False,
) -> tuple[ShardedCheckpoint, Any]:
    """Loads a model's shards on all ranks; spawns ranks unless already launched.

    Args:
        name, load_format, console, mtp: see `load_weights`, also for errors.

    Raises:
        UserError: the model cannot be split into `size` shards, or this process belongs to a group
            of a different size.
    """
    check_int("tensor_parallel_size", size, 2)
    folder = find_config(name, console)
    with model_errors(f"the model in {folder} cannot be loaded"):
        config = read_config(read_model_config(folder), mtp)
    try:
        rank_shard = RankShard(config, 0, size)
    except ValueError as error:
        raise UserError(
            f"'{name}' cannot be sharded across {size} ranks: {error}; use a different "
            "tensor_parallel_size."
        ) from error
    group = get_default_group(size, WORKER)
    key = group.new_id()
    device = "cpu" if kernels.computes_on_cpu() else "gpu"
    options = {"name": name, "load_format": load_format, "mtp": mtp}
    group.broadcast({"op": "load", "key": key, "device": device, **options})
    try:
        shard, tokenizer = load_weights(name, console, load_format, 0, size, mtp=mtp)
    finally:
        replies = group.gather_replies()
    _check_replies(replies)
    return ShardedCheckpoint(rank_shard.full_config, shard, rank_shard, group, key), tokenizer


def _check_replies(replies: Sequence[Any]) -> None:
    for reply in replies:
        if reply is None or reply["error"] is not None:
            raise ModelError(reply["error"] if reply else "a rank exited while loading its shard.")


class TensorParallelModel(PagedModel):
    """Rank 0's shard of a model; broadcasts each call to the other ranks.

    Args:
        num_pages, num_state_slots: per rank.
        adapters: folders of the LoRA adapters, already attached to `model`.

    Raises:
        ModelError: another rank cannot load an adapter.
    """

    def __init__(
        self,
        checkpoint: ShardedCheckpoint,
        model: TensorParallelDecoder,
        num_pages: int,
        num_state_slots: int = 0,
        adapters: Sequence[str | os.PathLike[str]] = (),
    ):
        super().__init__(model, num_pages, num_state_slots)
        self.group, self._key = checkpoint.group, checkpoint.group.new_id()
        self.group.broadcast(
            {
                "op": "build",
                "key": self._key,
                "checkpoint": checkpoint.key,
                "num_pages": num_pages,
                "num_state_slots": num_state_slots,
                "options": model.options,
                "mtp": isinstance(model, MtpDecoder),
                "adapters": [os.path.abspath(os.path.expanduser(path)) for path in adapters],
            }
        )
        if adapters:
            _check_replies(self.group.gather_replies())

    def __del__(self) -> None:
        with suppress(UserError, AttributeError):  # the group was not created, or has ended
            self.group.broadcast({"op": "unload", "key": self._key})

    def populate(self, num_pages: int, num_slots: int) -> None:
        sizes = {"num_pages": num_pages, "num_slots": num_slots}
        self.group.broadcast({"op": "populate", "key": self._key, **sizes})
        super().populate(num_pages, num_slots)

    def release(self, pages: Collection[int], slots: Collection[int]) -> None:
        message = {"op": "release", "key": self._key, "pages": list(pages), "slots": list(slots)}
        self.group.broadcast(message)
        super().release(pages, slots)

    def on_worker_lost(self, callback: Callable[[str], None]) -> None:
        self.group.on_worker_lost.append(callback)

    def release_scratch(self) -> None:
        """Frees scratch memory on all ranks; the next step reallocates it."""
        self.group.broadcast({"op": "release_scratch"})
        memory.release_free_memory()

    def logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """Like `PagedModel.logits`, but on all ranks; a failure ends the group.

        Raises:
            UserError: the group has ended.
            KeyboardInterrupt: on Ctrl-C, deferred to the end of the step; the group stays usable.
        """
        with self._on_all_ranks("step", **_batch_message(spans, rows)):
            return super().logits(spans, rows)

    def features(
        self, spans: Sequence[Span], rows: Sequence[int], hidden: mx.array | None = None
    ) -> mx.array:
        with self._on_all_ranks("features", self._payloads(hidden), **_batch_message(spans, rows)):
            return super().features(spans, rows, hidden)

    def lm_head(self, features: mx.array) -> mx.array:
        with self._on_all_ranks("lm_head", self._payloads(features)):
            return super().lm_head(features)

    def _payloads(self, hidden: mx.array | None) -> list[Buffer]:
        """Returns each worker's payload: N×E hidden states, or no bytes for None."""
        data: Buffer = b""
        if hidden is not None and hidden.size:
            values = mx.view(mx.contiguous(hidden), mx.uint8)
            data = memoryview(values).cast("B")  # type: ignore[arg-type]
        return [data] * (self.group.size - 1)

    def row_bytes(self, kind: RowKind) -> int:
        return super().row_bytes(kind) * self.group.size

    def read_row(self, kind: RowKind, index: int) -> bytes:
        """Concatenates all ranks' `PagedModel.read_row`; for errors, see `logits`."""
        with self._on_all_ranks("read_row", kind=kind, index=index):
            own = super().read_row(kind, index)
            return b"".join([own, *self.group.gather_payloads()])

    def write_rows(self, kind: RowKind, indices: Sequence[int], rows: Sequence[memoryview]) -> None:
        """Sends each rank its shard of the rows to write; for errors, see `logits`."""
        size = super().row_bytes(kind)
        own, *others = (
            [row[rank * size : (rank + 1) * size] for row in rows]
            for rank in range(self.group.size)
        )
        payloads = [b"".join(shards) for shards in others]
        with self._on_all_ranks("write_rows", payloads, kind=kind, indices=list(indices)):
            super().write_rows(kind, indices, own)

    def worker_fingerprints(self) -> list[bytes]:
        with self._on_all_ranks("fingerprint"):
            return self.group.gather_payloads()

    @contextmanager
    def _on_all_ranks(
        self, op: str, payloads: Sequence[Buffer] = (), **arguments: Any
    ) -> Iterator[None]:
        """Broadcasts a command, which the `with` block executes on rank 0."""
        with _defer_interrupt():
            self.group.broadcast({"op": op, "key": self._key, **arguments}, payloads)
            try:
                yield
            except BaseException:
                self.group.abort("a step failed on rank 0")
                raise


def _batch_message(spans: Sequence[Span], rows: Sequence[int]) -> dict[str, Any]:
    return {"spans": [list(vars(span).values()) for span in spans], "rows": list(rows)}


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Defers Ctrl-C to the end of the block, so that all ranks finish the step."""
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or handler is not signal.default_int_handler:
        yield  # KeyboardInterrupt cannot occur here
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if pressed:
        raise KeyboardInterrupt
