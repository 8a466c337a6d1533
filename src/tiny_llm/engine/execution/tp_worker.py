"""A program: a rank of a group that is not rank 0. It does what rank 0 says, and then ends.

    python -m tiny_llm.engine.execution.tp_worker RANK SOCKETS… ADDRESSES…

`parallel/spawn.py` starts it so; a rank that a launcher has started calls `serve_launched`.
`tp_model.py` says what to do. Any error here ends the group:
ranks that disagree about a step would wait for each other.
"""

import os
import signal
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from rich.console import Console

from ... import kernels
from ...models import load_weights, memory
from ...models.checkpoint.layout import read_model_config
from ...models.checkpoint.sharding import RankShard
from ...models.families.registry import read_config
from ...models.hub import find_config
from ...models.parallel.decoder import TensorParallelDecoder
from ...models.parallel.group import Worker
from ...models.parallel.launcher import launched_worker
from ...models.parallel.spawn import local_worker
from .paged_model import PagedModel, Span


class TPWorker:
    """What this rank has: parts of checkpoints, and models built of them.

    Args:
        worker: the connection to the others.
    """

    def __init__(self, worker: Worker):
        self._worker = worker
        self._console = Console(stderr=True, quiet=True)  # rank 0 says everything once
        self._checkpoints: dict[int, tuple[Any, RankShard]] = {}
        self._models: dict[int, PagedModel] = {}

    def load(self, key: int, name: str, load_format: str, device: str) -> None:
        """Loads this rank's part of a checkpoint, and answers whether that went well."""
        worker, error = self._worker, None
        if device == "cpu":
            kernels.use_cpu()
        try:
            whole = read_config(read_model_config(find_config(name, self._console)))
            own, _ = load_weights(
                name, self._console, load_format, worker.rank, worker.size, with_tokenizer=False
            )
            self._checkpoints[key] = own, RankShard(whole, worker.rank, worker.size)
        except ValueError as refused:
            error = str(refused)
        worker.channel.send({"error": error})

    def build(
        self, key: int, checkpoint: int, num_pages: int, page_size: int, attention_backend: str
    ) -> None:
        """Builds a model with pages."""
        own, part = self._checkpoints[checkpoint]
        model = TensorParallelDecoder(own, part, self._worker.comm, page_size, attention_backend)
        self._models[key] = PagedModel(model, num_pages)

    def reserve(self, key: int) -> None:
        """Takes the memory of all pages of a model."""
        self._models[key].reserve()

    def step(self, key: int, spans: Sequence[Any], rows: Sequence[int]) -> None:
        """Computes a step; see `PagedModel.logits`."""
        own = [Span(token_ids, start, array("i", pages)) for token_ids, start, pages in spans]
        self._models[key].logits(own, rows)

    def release_scratch(self) -> None:
        """Gives back the memory that steps used beside weights and pages."""
        memory.release_free_memory()

    def drop(self, key: int) -> None:
        """Gives a model's pages back."""
        self._models.pop(key, None)

    def execute(self, message: Mapping[str, Any]) -> None:
        """Does what a message says."""
        arguments = {name: value for name, value in message.items() if name != "do"}
        actions: dict[str, Callable[..., None]] = {
            "load": self.load,
            "build": self.build,
            "reserve": self.reserve,
            "step": self.step,
            "release_scratch": self.release_scratch,
            "drop": self.drop,
        }
        actions[message["do"]](**arguments)


def serve_launched() -> NoReturn:
    """Serves as a rank that a launcher has started, until rank 0 ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # rank 0 decides what these end
    serve(launched_worker())


def main(arguments: Sequence[str]) -> NoReturn:
    """Serves as a rank that rank 0 has started, until that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(local_worker(arguments))


def serve(worker: Worker) -> NoReturn:
    """Does what rank 0 says, and ends the process."""
    rank = TPWorker(worker)
    while (message := worker.channel.receive()) is not None:
        if message["do"] == "end":
            worker.shutdown()
        try:
            rank.execute(message)
        except Exception as error:
            worker.fail(f"{type(error).__name__}: {error}")
    os._exit(1)  # rank 0 is gone


if __name__ == "__main__":
    main(sys.argv[1:])
