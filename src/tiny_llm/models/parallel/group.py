"""Rank group: SPMD execution of rank 0's calls; a lost rank ends the group.

All ranks run the same functions in the same order. Rank 0 broadcasts each call: the function and
its arguments, pickled. A `Replica` exists on every rank and is pickled as its key.

Calls use a connection per worker, because MLX's ring and MPI collectives busy-wait. A thread per
connection exits the process when its peer is lost, which a rank blocked in a collective cannot
detect. The operating system closes a dead rank's connection, and keepalive probes detect a lost
machine (`launch.py`). A slow or paused rank keeps its connection, so the others wait for it.
"""

import atexit
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import mlx.core as mx

from ...errors import UserError
from ..checkpoint.safe_io import ModelError
from . import mpi
from .layers import all_gather

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

EXIT_SECONDS = 2.0  # grace period for workers to exit at shutdown
END = b"end"  # broadcast instead of a call
MAX_TEXT_BYTES = 1024

# Called with the error message when a worker is lost, before rank 0 exits.
on_worker_lost: list[Callable[[str], None]] = []

_replicas: dict[int, "Replica"] = {}  # by key, on workers


class Replica:
    """Base of objects that every rank has: results of `RankGroup.run`."""

    __slots__ = ("key",)  # not in `vars`, which the disk cache's fingerprint covers
    key: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_replica, (self.key,)


def _find_replica(key: int) -> Replica:
    return _replicas[key]


class RankGroup:
    """This process's rank.

    Args:
        connections: to all workers, in rank order, or to rank 0.
        processes: the workers that this process has spawned, in rank order.
    """

    def __init__(
        self,
        comm: mpi.Group,
        connections: Sequence["Connection"],
        processes: Sequence["subprocess.Popen[bytes]"] = (),
    ):
        self.comm, self.rank, self.size = comm, comm.rank(), comm.size()
        self._connections, self._processes = connections, processes
        self._end_reason: str | None = None
        self._num_replicas = 0
        self._deleted: list[int] = []  # keys, broadcast with the next call
        self._calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # from rank 0
        self._call_lock, self._loss_lock = threading.Lock(), threading.Lock()
        if self.rank == 0:
            atexit.register(self.end)
        others = range(1, self.size) if self.rank == 0 else [0]
        for other in zip(others, connections, strict=True):
            threading.Thread(target=self._watch, args=other, daemon=True).start()

    # ---------------------------------------------------------------- calls

    def run(self, function: Callable[..., Any], *args: Any, **own: Any) -> Any:
        """Calls a function on all ranks; returns rank 0's result.

        Ctrl-C is deferred to the end of the call. An exception on one rank ends the group.

        Args:
            own: keyword arguments of rank 0 only.

        Raises:
            UserError: the function raised it on all ranks, or the group has ended.
        """
        with self._call_lock, _defer_interrupt():
            if self._end_reason is not None:
                raise UserError(f"the rank group has shut down: {self._end_reason}.")
            deleted = self._deleted[:]
            del self._deleted[: len(deleted)]
            with suppress(OSError):  # `_watch` reports the lost rank
                self._send(pickle.dumps((deleted, function, args)))
            try:
                result = self._call(function, *args, **own)
            except UserError:
                raise
            except BaseException:
                self._end_reason = "a call failed on rank 0"
                for process in self._processes:
                    process.kill()
                raise
            if isinstance(result, Replica):
                weakref.finalize(result, self._deleted.append, result.key)
            return result

    def serve(self) -> NoReturn:
        """Runs a worker: executes rank 0's calls until the group ends, then exits."""
        try:
            while (data := self._calls.get()) != END:
                self._execute(data)
        except BaseException as error:
            print(f"tiny-llm: rank {self.rank}: {type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        mpi.finalize()
        os._exit(0)

    def _execute(self, data: bytes) -> None:
        deleted, function, args = pickle.loads(data)
        for key in deleted:
            del _replicas[key]
        with suppress(UserError):  # raised on rank 0, too
            result = self._call(function, *args)
            if isinstance(result, Replica):
                _replicas[result.key] = result

    def _call(self, function: Callable[..., Any], *args: Any, **own: Any) -> Any:
        result = function(*args, **own)
        if isinstance(result, Replica):
            self._num_replicas += 1  # the same on all ranks
            result.key = self._num_replicas
        return result

    def _send(self, message: bytes) -> None:
        for connection in self._connections:
            connection.send_bytes(message)

    @contextmanager
    def agreement(self) -> Iterator[None]:
        """Turns a `ValueError` in the block on any rank into a `ModelError` on all ranks."""
        error = ""
        try:
            yield
        except ValueError as failure:
            error = str(failure).strip() or type(failure).__name__
        if errors := [text for text in gather_text(error, self.comm) if text]:
            raise ModelError(error or errors[0])

    def end(self) -> None:
        """Ends the workers; later calls raise a `UserError`."""
        if self._end_reason is not None:
            return
        self._end_reason = "the process is exiting"
        with suppress(OSError):  # a worker has exited
            self._send(END)
        for process in self._processes:
            try:
                process.wait(EXIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        mpi.finalize()

    def _watch(self, rank: int, connection: "Connection") -> None:
        """Receives calls; exits the process if the connection closes before the group ends."""
        message = b""
        try:
            while message != END:
                message = connection.recv_bytes()
                self._calls.put(message)
            return
        except (EOFError, OSError) as error:
            reason = str(error) or "connection closed"
        if self._end_reason is not None:
            return
        if self.rank > 0:
            os._exit(1)  # rank 0 reports the lost rank, unless that is rank 0
        for process in self._processes[rank - 1 : rank]:  # none if launched
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(1)
                reason = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        self._loss_lock.acquire()  # never released, so that only the first loss is reported
        for each in self._processes:
            each.kill()
        text = f"rank {rank} of {self.size} is lost: {reason}."
        try:
            for callback in on_worker_lost:
                with suppress(Exception):
                    callback(text)
            # Silences the ring's socket errors. The leading newline ends a line that it has begun.
            stderr = os.dup(2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(stderr, f"\ntiny-llm: {text}\n".encode())
        finally:
            os._exit(1)


def gather_bytes(data: bytes, comm: mpi.Group) -> list[bytes]:
    """Returns all ranks' bytes, of equal length, in rank order."""
    parts = all_gather(mx.array(memoryview(data)), comm)  # type: ignore[arg-type]
    return [bytes(memoryview(part)) for part in parts]  # type: ignore[arg-type]


def gather_text(text: str, comm: mpi.Group) -> list[str]:
    data = text.encode()[:MAX_TEXT_BYTES].ljust(MAX_TEXT_BYTES)
    return [part.decode(errors="ignore").strip() for part in gather_bytes(data, comm)]


@contextmanager
def _defer_interrupt() -> Iterator[None]:
    """Defers Ctrl-C to the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signal handlers run in the main thread
        return
    pressed: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pressed:  # also if the block raised an exception
            signal.raise_signal(signal.SIGINT)
