"""A model on several ranks, seen from rank 0: every step is a message to the others.

Rank 0 has the requests, the scheduler and the sampler. What the other ranks need to compute the
same step is what `PagedModel.logits` takes: token ids, positions, pages. They write the same places
of their own pages, so prefix cache and preemption are decided once.
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
    """A checkpoint whose parts are loaded on all ranks; takes the place of a loaded model.

    Attributes:
        args: the whole model's config.
        model: what rank 0 has of its layers.
        shard: rank 0's part.
        part: which part that is.
        group: the ranks.
        key: its number on the other ranks.
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
    """Loads a model's parts on so many ranks, which are started on this machine if there are none.

    Args:
        name, load_format, console: see `load_weights`; errors too.
        size: how many ranks.

    Returns:
        (checkpoint, tokenizer), for `LLM`.

    Raises:
        UserError: the model cannot be split among so many; this process has another group.
    """
    check_int("tensor_parallel_size", size, 2)
    try:
        part = RankShard(read_config(read_model_config(find_config(name, console))), 0, size)
    except ModelError:
        raise
    except ValueError as error:
        raise UserError(
            f"'{name}' cannot be served by {size} ranks: {error}; give another "
            "tensor_parallel_size."
        ) from error
    group = get_default_group(size, WORKER)
    key = group.new_id()
    device = "cpu" if kernels.computes_on_cpu() else "gpu"
    group.broadcast(
        {"do": "load", "key": key, "name": name, "load_format": load_format, "device": device}
    )
    try:
        own, tokenizer = load_weights(name, console, load_format, 0, size)
    finally:
        answers = group.gather_replies()
    for answer in answers:
        if answer is None or answer["error"] is not None:
            raise ModelError(answer["error"] if answer else "a rank ended while it loaded.")
    return ShardedCheckpoint(part.full_config, own, part, group, key), tokenizer


class TensorParallelModel(PagedModel):
    """Rank 0's side of a model whose other parts compute every step, too.

    Args:
        checkpoint: the parts.
        model: rank 0's decoder.
        num_pages: how many pages each rank may have.

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
        """Lets the other ranks give their pages back."""
        with suppress(UserError, AttributeError):  # the group has ended, or was never there
            self.group.broadcast({"do": "drop", "key": self._key})

    def reserve(self) -> None:
        """See `PagedModel`; on every rank."""
        self.group.broadcast({"do": "reserve", "key": self._key})
        super().reserve()

    def on_worker_lost(self, callback: Callable[[str], None]) -> None:
        """See `PagedModel`."""
        self.group.on_worker_lost.append(callback)

    def release_scratch(self) -> None:
        """Has all ranks give back the memory that steps used beside weights and pages."""
        self.group.broadcast({"do": "release_scratch"})
        memory.release_free_memory()

    def logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """See `PagedModel`. If it fails, the ranks no longer agree, and the group ends.

        Raises:
            UserError: the group has ended.
            KeyboardInterrupt: Ctrl-C was pressed; the step is finished, and the ranks go on.
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
            self.group.abort("a step was not finished")
            raise


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Has Ctrl-C wait until what is inside is done: the other ranks compute the step anyway."""
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is not signal.default_int_handler:
        yield  # no KeyboardInterrupt comes here
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        raise KeyboardInterrupt


def make_decoder(
    checkpoint: ShardedCheckpoint, page_size: int, attention_backend: str
) -> TensorParallelDecoder:
    """Rank 0's decoder."""
    return TensorParallelDecoder(
        checkpoint.shard, checkpoint.part, checkpoint.group.comm, page_size, attention_backend
    )
