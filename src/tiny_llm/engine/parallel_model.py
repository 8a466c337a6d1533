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

from .. import kernels
from ..errors import UserError, check_whole
from ..models import ModelError, free_memory, load_weights
from ..models.families.config import DecoderConfig
from ..models.families.registry import read_config
from ..models.files import read_model_config
from ..models.names import find_config
from ..models.parallel.decoder import ParallelDecoder
from ..models.parallel.group import RankGroup
from ..models.parallel.own import own_group
from ..models.parts import RankPart
from .paged_model import PagedModel, Span

if TYPE_CHECKING:
    from rich.console import Console

WORKER = "tiny_llm.engine.parallel_worker"


@dataclass(frozen=True, eq=False)
class ParallelCheckpoint:
    """A checkpoint whose parts are loaded on all ranks; takes the place of a loaded model.

    Attributes:
        args: the whole model's config.
        model: what rank 0 has of its layers.
        own: rank 0's part.
        part: which part that is.
        group: the ranks.
        key: its number on the other ranks.
    """

    args: DecoderConfig
    own: Any
    part: RankPart
    group: RankGroup
    key: int

    @property
    def model(self) -> Any:
        """Rank 0's layers."""
        return self.own.model


def load_in_parallel(
    name: str, size: int, load_format: str = "auto", console: "Console | None" = None
) -> tuple[ParallelCheckpoint, Any]:
    """Loads a model's parts on so many ranks, which are started on this machine if there are none.

    Args:
        name, load_format, console: see `load_weights`; errors too.
        size: how many ranks.

    Returns:
        (checkpoint, tokenizer), for `LLM`.

    Raises:
        UserError: the model cannot be split among so many; this process has another group.
    """
    check_whole("tensor_parallel_size", size, 2)
    try:
        part = RankPart(read_config(read_model_config(find_config(name, console))), 0, size)
    except ModelError:
        raise
    except ValueError as error:
        raise UserError(
            f"'{name}' cannot be served by {size} ranks: {error}; give another "
            "tensor_parallel_size."
        ) from error
    group = own_group(size, WORKER)
    key = group.new_key()
    device = "cpu" if kernels.computes_on_cpu() else "gpu"
    group.tell(
        {"do": "load", "key": key, "name": name, "load_format": load_format, "device": device}
    )
    try:
        own, tokenizer = load_weights(name, console, load_format, 0, size)
    finally:
        answers = group.answers()
    for answer in answers:
        if answer is None or answer["error"] is not None:
            raise ModelError(answer["error"] if answer else "a rank ended while it loaded.")
    return ParallelCheckpoint(part.whole, own, part, group, key), tokenizer


class ParallelPagedModel(PagedModel):
    """Rank 0's side of a model whose other parts compute every step, too.

    Args:
        checkpoint: the parts.
        model: rank 0's decoder.
        num_pages: how many pages each rank may have.

    Attributes:
        group: the ranks.
    """

    def __init__(self, checkpoint: ParallelCheckpoint, model: ParallelDecoder, num_pages: int):
        super().__init__(model, num_pages)
        self.group, self._key = checkpoint.group, checkpoint.group.new_key()
        self.group.tell(
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
            self.group.tell({"do": "drop", "key": self._key})

    def reserve(self) -> None:
        """See `PagedModel`; on every rank."""
        self.group.tell({"do": "reserve", "key": self._key})
        super().reserve()

    def before_end(self, callback: Callable[[str], None]) -> None:
        """See `PagedModel`."""
        self.group.before_end.append(callback)

    def rest(self) -> None:
        """Has all ranks give back the memory that steps used beside weights and pages."""
        self.group.tell({"do": "rest"})
        free_memory.give_all_back()

    def logits(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        """See `PagedModel`. If it fails, the ranks no longer agree, and the group ends.

        Raises:
            UserError: the group has ended.
            KeyboardInterrupt: Ctrl-C was pressed; the step is finished, and the ranks go on.
        """
        with _finished_first():
            return self._logits_of_all(spans, rows)

    def _logits_of_all(self, spans: Sequence[Span], rows: Sequence[int]) -> mx.array:
        self.group.tell(
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
            self.group.give_up("a step was not finished")
            raise


@contextmanager
def _finished_first() -> Iterator[None]:
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


def decoder_of(
    checkpoint: ParallelCheckpoint, page_size: int, attention_backend: str
) -> ParallelDecoder:
    """Rank 0's decoder."""
    return ParallelDecoder(
        checkpoint.own, checkpoint.part, checkpoint.group.ranks, page_size, attention_backend
    )
