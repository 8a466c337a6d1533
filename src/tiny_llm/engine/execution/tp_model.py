"""TensorParallelModel: rank 0 of a sharded model; broadcasts each step.

Rank 0 holds the requests, the scheduler and the sampler. The other ranks receive the arguments of
`PagedModel.logits`: token ids, positions, block tables. They write the same slots of their own
pages, so prefix cache and preemption are decided once, on rank 0.
"""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from ... import kernels
from ...errors import UserError, check_int
from ...models import ModelError, load_weights, memory
from ...models.checkpoint.layout import read_model_config
from ...models.checkpoint.sharding import RankShard
from ...models.families.config import DecoderConfig
from ...models.families.registry import read_config
from ...models.hub import find_config
from ...models.parallel.decoder import TensorParallelDecoder
from ...models.parallel.default_group import get_default_group
from ...models.parallel.group import RankGroup
from .paged_model import PagedModel, Span

if TYPE_CHECKING:
    from rich.console import Console

WORKER = "tiny_llm.engine.execution.tp_worker"


@dataclass(frozen=True, eq=False)
class ShardedCheckpoint:
    """A checkpoint loaded on all ranks, one shard each; used in place of a loaded model.

    Attributes:
        args: config of the full model.
        model: rank 0's layers.
        shard: rank 0's shard.
        part: rank 0's position in the group.
        group: the ranks.
        key: the checkpoint's id on the other ranks.
    """

    args: DecoderConfig
    shard: Any
    part: RankShard
    group: RankGroup
    key: int

    @property
    def model(self) -> Any:
        """Rank 0's layers."""
        return self.shard.model


def load_sharded(
    name: str, size: int, load_format: str = "auto", console: "Console | None" = None
) -> tuple[ShardedCheckpoint, Any]:
    """Loads a model's shards on all ranks; spawns them on this machine if not launched.

    Args:
        name, load_format, console: see `load_weights`, also for errors.
        size: number of ranks.

    Returns:
        (checkpoint, tokenizer), for `LLM`.

    Raises:
        UserError: the model cannot be split into `size` shards, or this process belongs to a group
            of another size.
    """
    check_int("tensor_parallel_size", size, 2)
    try:
        part = RankShard(read_config(read_model_config(find_config(name, console))), 0, size)
    except ModelError:
        raise
    except ValueError as error:
        raise UserError(
            f"'{name}' cannot be sharded across {size} ranks: {error}; give another "
            "tensor_parallel_size."
        ) from error
    group = get_default_group(size, WORKER)
    key = group.new_id()
    device = "cpu" if kernels.computes_on_cpu() else "gpu"
    group.broadcast(
        {"do": "load", "key": key, "name": name, "load_format": load_format, "device": device}
    )
    try:
        shard, tokenizer = load_weights(name, console, load_format, 0, size)
    finally:
        replies = group.gather_replies()
    for reply in replies:
        if reply is None or reply["error"] is not None:
            raise ModelError(reply["error"] if reply else "a rank exited while loading its shard.")
    return ShardedCheckpoint(part.full_config, shard, part, group, key), tokenizer


class TensorParallelModel(PagedModel):
    """Rank 0's shard; broadcasts every call to the other ranks.

    Args:
        checkpoint: the shards.
        model: rank 0's decoder.
        num_pages: number of pages on each rank.

    Attributes:
        group: the ranks.
    """

    def __init__(self, checkpoint: ShardedCheckpoint, model: TensorParallelDecoder, num_pages: int):
        super().__init__(model, num_pages)
        self.group, self._key = checkpoint.group, checkpoint.group.new_id()
        self.group.broadcast(
            {
                "do": "build",
                "key": self._key,
                "checkpoint": checkpoint.key,
                "num_pages": num_pages,
                "page_size": model.page_size,
                "attention_backend": model.attention_backend,
            }
        )

    def __del__(self) -> None:
        """Frees the pages on the other ranks."""
        with suppress(UserError, AttributeError):  # no group, or it has ended
            self.group.broadcast({"do": "drop", "key": self._key})

    def reserve(self) -> None:
        """See `PagedModel`; on all ranks."""
        self.group.broadcast({"do": "reserve", "key": self._key})
        super().reserve()

    def on_worker_lost(self, callback: Callable[[str], None]) -> None:
        """See `PagedModel`."""
        self.group.on_worker_lost.append(callback)

    def release_scratch(self) -> None:
        """Frees scratch memory on all ranks; the next step reallocates it."""
        self.group.broadcast({"do": "release_scratch"})
        memory.release_free_memory()

    def logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """See `PagedModel`. A failed step leaves the ranks inconsistent, so it ends the group.

        Raises:
            UserError: the group has ended.
            KeyboardInterrupt: Ctrl-C, deferred to the end of the step; the group stays usable.
        """
        with _defer_interrupt():
            return self._logits_on_all_ranks(spans, rows)

    def _logits_on_all_ranks(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        self.group.broadcast(
            {
                "do": "step",
                "key": self._key,
                "spans": [
                    [[int(token) for token in span.token_ids], span.start, list(span.page_ids)]
                    for span in spans
                ],
                "rows": [int(row) for row in rows],
            }
        )
        try:
            return super().logits(spans, rows)
        except BaseException:
            self.group.abort("a step failed on rank 0")
            raise


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Defers Ctrl-C to the end of the block: the other ranks finish the step anyway."""
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


def make_decoder(
    checkpoint: ShardedCheckpoint, page_size: int, attention_backend: str
) -> TensorParallelDecoder:
    """Builds rank 0's decoder."""
    return TensorParallelDecoder(
        checkpoint.shard, checkpoint.part, checkpoint.group.comm, page_size, attention_backend
    )
