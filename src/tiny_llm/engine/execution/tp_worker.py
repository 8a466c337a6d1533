"""Worker process of a tensor-parallel group: executes rank 0's messages.

    python -m tiny_llm.engine.execution.tp_worker RANK SOCKETS… ADDRESSES…

`parallel/spawn.py` runs this command; ranks started by a launcher call `serve_launched` instead.
`tp_model.py` sends the messages. Loading errors are reported to rank 0; any other error ends the
group, because inconsistent ranks would deadlock.
"""

import os
import signal
import sys
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import mlx.core as mx
from rich.console import Console

from ... import kernels
from ...models import load_weights, memory
from ...models.checkpoint.sharding import RankShard
from ...models.families.registry import read_config
from ...models.gguf.model_files import read_model_config
from ...models.hub import find_config
from ...models.lora import attach_adapters
from ...models.parallel.decoder import TensorParallelDecoder, make_decoder
from ...models.parallel.group import Worker
from ...models.parallel.launcher import launched_worker
from ...models.parallel.spawn import local_worker
from .paged_model import PagedModel, RowKind, Span


class TPWorker:
    def __init__(self, worker: Worker):
        self._worker = worker
        self._console = Console(stderr=True, quiet=True)  # only rank 0 prints
        self._checkpoints: dict[int, tuple[Any, RankShard]] = {}
        self._models: dict[int, PagedModel] = {}

    def load(self, key: int, name: str, load_format: str, device: str, mtp: bool) -> None:
        """Loads this rank's shard of a checkpoint; replies with an error or None."""
        worker, error = self._worker, None
        if device == "cpu":
            kernels.use_cpu()
        try:
            full_config = read_config(read_model_config(find_config(name, self._console)), mtp)
            ranks = worker.rank, worker.size
            shard, _ = load_weights(name, self._console, load_format, *ranks, False, mtp)
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
        options: Mapping[str, Any],
        mtp: bool,
        adapters: Sequence[str],
    ) -> None:
        """Builds a model; with adapters, loads them and replies like `load`."""
        shard, rank_shard = self._checkpoints[checkpoint]
        model = make_decoder(shard, rank_shard, self._worker.comm, mtp, **options)
        self._models[key] = PagedModel(model, num_pages, num_state_slots)
        if not adapters:
            return
        error = None
        try:
            attach_adapters(model, adapters, rank_shard)
        except ValueError as failure:
            error = str(failure)
        self._worker.channel.send({"error": error})

    def populate(self, key: int, num_pages: int, num_slots: int) -> None:
        self._models[key].populate(num_pages, num_slots)

    def release(self, key: int, pages: Sequence[int], slots: Sequence[int]) -> None:
        self._models[key].release(pages, slots)

    def step(self, key: int, spans: Sequence[Any], rows: Sequence[int]) -> None:
        self._models[key].logits(_parse_spans(spans), rows)

    def features(self, key: int, spans: Sequence[Any], rows: Sequence[int]) -> None:
        """See `PagedModel.features`; the hidden states are the message's payload."""
        hidden = self._receive_hidden(key)
        self._models[key].features(_parse_spans(spans), rows, hidden)

    def lm_head(self, key: int) -> None:
        hidden = self._receive_hidden(key)
        if hidden is not None:
            self._models[key].lm_head(hidden)

    def _receive_hidden(self, key: int) -> mx.array | None:
        payload, model = self._worker.channel.receive_bytes(), self._models[key].model
        if not payload:
            return None
        assert isinstance(model, TensorParallelDecoder)
        data = mx.array(memoryview(payload))  # type: ignore[arg-type]  # uint8
        return mx.view(data, model.dtype).reshape(-1, model.hidden_size)

    def read_row(self, key: int, kind: RowKind, index: int) -> None:
        self._worker.channel.send_bytes(self._models[key].read_row(kind, index))

    def write_rows(self, key: int, kind: RowKind, indices: Sequence[int]) -> None:
        model, payload = self._models[key], memoryview(self._worker.channel.receive_bytes() or b"")
        size = model.row_bytes(kind)
        rows = [payload[start : start + size] for start in range(0, len(payload), size)]
        model.write_rows(kind, indices, rows)

    def fingerprint(self, key: int) -> None:
        # Imported here: a worker without a disk cache saves 3 MB.
        from .disk_cache.fingerprint import fingerprint

        self._worker.channel.send_bytes(fingerprint([self._models[key].model]))

    def release_scratch(self) -> None:
        memory.release_free_memory()

    def unload(self, key: int) -> None:
        self._models.pop(key, None)

    def execute(self, message: Mapping[str, Any]) -> None:
        arguments = {name: value for name, value in message.items() if name != "op"}
        getattr(self, message["op"])(**arguments)


def _parse_spans(spans: Sequence[Any]) -> list[Span]:
    return [
        Span(token_ids, start, array("i", pages), *rest) for token_ids, start, pages, *rest in spans
    ]


def serve_launched() -> NoReturn:
    """Entry point for ranks started by a launcher."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # only rank 0 handles these signals
    serve(launched_worker())


def main(arguments: Sequence[str]) -> NoReturn:
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
