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
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn

import mlx.core as mx

from ...errors import UserError
from ..checkpoint.safe_io import ModelError
from . import mpi
from .layers import Group, all_gather

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

EXIT_SECONDS = 2.0  # grace period for a worker's call after rank 0 has exited
END = b"end"  # broadcast instead of a call
MAX_TEXT_BYTES = 1024

# Called with the error message when a worker is lost, before rank 0 exits.
on_worker_lost: list[Callable[[str], None]] = []

_replicas: dict[int, "Replica"] = {}  # by key, on workers


class Replica:
    """Base of objects that every rank has: results of `RankGroup.run`."""

    __slots__ = ("key",)  # not in `vars`, which the disk cache's fingerprint covers
    key: int  # index of the call, on rank 0

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
        comm: Group,
        connections: Sequence["Connection"],
        processes: Sequence["subprocess.Popen[bytes]"] = (),
    ):
        self.comm, self.rank, self.size = comm, comm.rank(), comm.size()
        self._connections, self._processes = connections, processes
        self._end_reason: str | None = None
        self._num_calls = 0
        self._deleted: list[int] = []  # keys of replicas, broadcast with the next call
        self._calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # from rank 0
        self._call_lock, self._loss_lock = threading.Lock(), threading.Lock()
        if self.rank == 0:
            atexit.register(self.end)
        others = range(1, self.size) if self.rank == 0 else [0]
        for other in zip(others, connections, strict=True):
            threading.Thread(target=self._watch, args=other, daemon=True).start()

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function on all ranks; returns rank 0's result.

        Ctrl-C is deferred to the end of the call. An exception on one rank ends the group.

        Raises:
            UserError: the function raised it on all ranks, or the group has ended.
        """
        with self._call_lock, _defer_interrupt():
            if self._end_reason is not None:
                raise UserError(f"the rank group has shut down: {self._end_reason}.")
            deleted = self._deleted[:]
            del self._deleted[: len(deleted)]
            self._num_calls += 1
            self._send(pickle.dumps((self._num_calls, deleted, function, args)))
            try:
                result = function(*args)
            except UserError:
                raise
            except BaseException:
                time.sleep(1)  # `_watch` reports a lost worker and exits
                self._end_reason = "a call failed on rank 0"
                for process in self._processes:
                    process.kill()
                raise
            if isinstance(result, Replica):
                result.key = self._num_calls
                weakref.finalize(result, self._deleted.append, result.key)
            return result

    def serve(self) -> NoReturn:
        """Runs a worker: executes rank 0's calls until the group ends, then exits."""
        try:
            while (call := self._calls.get()) != END:
                self._execute(*pickle.loads(call))
        except BaseException as error:
            print(f"tiny-llm: rank {self.rank}: {type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        mpi.finalize()
        os._exit(0)

    def _execute(self, key: int, deleted: list[int], function: Any, args: tuple[Any, ...]) -> None:
        for each in deleted:
            del _replicas[each]
        with suppress(UserError):  # raised on rank 0, too
            result = function(*args)
            if isinstance(result, Replica):
                _replicas[key] = result

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
        if self._end_reason is None:
            self._end_reason = "the process is exiting"
            self._send(END)
            mpi.finalize()

    def _send(self, call: bytes) -> None:
        for connection in self._connections:
            with suppress(OSError):  # `_watch` reports the lost rank
                connection.send_bytes(call)

    def _watch(self, rank: int, connection: "Connection") -> None:
        """Receives calls; exits the process if the connection closes before the group ends."""
        call = b""
        with suppress(EOFError, OSError):
            while call != END:
                call = connection.recv_bytes()
                self._calls.put(call)
        if call == END and self.rank > 0:
            # The main thread may be in a collective that rank 0 has abandoned.
            with suppress(EOFError, OSError):
                connection.recv_bytes()  # returns when rank 0 has exited
            time.sleep(EXIT_SECONDS)
            os._exit(1)
        if self._end_reason is not None:
            return
        if self.rank > 0:
            os._exit(1)  # rank 0 reports the lost rank, unless that is rank 0
        reason = "connection closed"
        for process in self._processes[rank - 1 : rank]:  # none if launched
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(1)
                reason = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        self._loss_lock.acquire()  # never released, so that only the first loss is reported
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


def gather_bytes(data: bytes, comm: Group) -> list[bytes]:
    """Returns all ranks' bytes, of equal length, in rank order."""
    parts = all_gather(mx.array(memoryview(data)), comm)  # type: ignore[arg-type]
    return [bytes(memoryview(part)) for part in parts]  # type: ignore[arg-type]


def gather_text(text: str, comm: Group) -> list[str]:
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
