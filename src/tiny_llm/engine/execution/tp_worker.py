"""Worker process of a tensor-parallel group: executes rank 0's messages.

    python -m tiny_llm.engine.execution.tp_worker RANK SOCKETS… ADDRESSES…

is the command line used by `parallel/spawn.py`; externally launched ranks call `serve_launched`.
`tp_model.py` sends the messages. Any error ends the group: inconsistent ranks would deadlock.
"""

import os
import signal
import sys
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from rich.console import Console

from ... import kernels
from ...kv_cache.int8_rows import KvCacheDtype
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
    """Holds this rank's shards and models, and executes messages.

    Args:
        worker: connection to the group.
    """

    def __init__(self, worker: Worker):
        self._worker = worker
        self._console = Console(stderr=True, quiet=True)  # rank 0 prints
        self._checkpoints: dict[int, tuple[Any, RankShard]] = {}
        self._models: dict[int, PagedModel] = {}

    def load(self, key: int, name: str, load_format: str, device: str) -> None:
        """Loads this rank's shard of a checkpoint; replies with an error message or None."""
        worker, error = self._worker, None
        if device == "cpu":
            kernels.use_cpu()
        try:
            full_config = read_config(read_model_config(find_config(name, self._console)))
            shard, _ = load_weights(
                name, self._console, load_format, worker.rank, worker.size, with_tokenizer=False
            )
            self._checkpoints[key] = shard, RankShard(full_config, worker.rank, worker.size)
        except ValueError as failure:
            error = str(failure)
        worker.channel.send({"error": error})

    def build(
        self,
        key: int,
        checkpoint: int,
        num_pages: int,
        num_state_slots: int,
        page_size: int,
        attention_backend: str,
        kv_cache_dtype: KvCacheDtype,
    ) -> None:
        """Builds a model with its pages and state slots."""
        shard, rank_shard = self._checkpoints[checkpoint]
        model = TensorParallelDecoder(
            shard, rank_shard, self._worker.comm, page_size, attention_backend, kv_cache_dtype
        )
        self._models[key] = PagedModel(model, num_pages, num_state_slots)

    def reserve(self, key: int) -> None:
        """Allocates memory for all pages and state slots of a model."""
        self._models[key].reserve()

    def keep(self, key: int, pages: Sequence[int], slots: Sequence[int]) -> None:
        """Renumbers a model's pages and state slots; see `PagedStorage.keep`."""
        self._models[key].keep(pages, slots)
        memory.release_free_memory()

    def step(self, key: int, spans: Sequence[Any], rows: Sequence[int]) -> None:
        """Runs the model on a step; see `PagedModel.logits`."""
        parsed = [
            Span(token_ids, start, array("i", pages), *states)
            for token_ids, start, pages, *states in spans
        ]
        self._models[key].logits(parsed, rows)

    def release_scratch(self) -> None:
        """Frees scratch memory."""
        memory.release_free_memory()

    def drop(self, key: int) -> None:
        """Frees a model and its pages."""
        self._models.pop(key, None)

    def execute(self, message: Mapping[str, Any]) -> None:
        """Dispatches a message to its method."""
        arguments = {name: value for name, value in message.items() if name != "op"}
        actions: dict[str, Callable[..., None]] = {
            "load": self.load,
            "build": self.build,
            "reserve": self.reserve,
            "keep": self.keep,
            "step": self.step,
            "release_scratch": self.release_scratch,
            "drop": self.drop,
        }
        actions[message["op"]](**arguments)


def serve_launched() -> NoReturn:
    """Entry point for externally launched ranks."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # handled by rank 0
    serve(launched_worker())


def main(arguments: Sequence[str]) -> NoReturn:
    """Entry point for ranks spawned by rank 0."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(local_worker(arguments))


def serve(worker: Worker) -> NoReturn:
    """Executes messages until the group ends, then exits the process."""
    rank = TPWorker(worker)
    while (message := worker.channel.receive()) is not None:
        if message["op"] == "shutdown":
            worker.shutdown()
        try:
            rank.execute(message)
        except Exception as error:
            worker.fail(f"{type(error).__name__}: {error}")
    os._exit(1)  # rank 0 has died


if __name__ == "__main__":
    main(sys.argv[1:])
