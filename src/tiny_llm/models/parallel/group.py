"""Rank group: SPMD execution of rank 0's calls; a lost rank ends the group.

All ranks run the same functions in the same order. Rank 0 broadcasts each call, pickled. A
`Replica` exists on every rank and is pickled as its key.

Calls use a connection per worker, because MLX's collectives busy-wait. A thread exits the process
when a connection closes, which a rank blocked in a collective cannot detect. The operating system
closes a dead rank's connection, and keepalive probes detect a lost machine (`launch.py`). A slow or
paused rank keeps its connection, so the others wait for it.
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
from functools import partial
from typing import Any, NoReturn, TypeVar

import mlx.core as mx

from ...errors import UserError
from ..checkpoint.safe_io import ModelError
from . import mpi
from .layers import Group, all_gather

T = TypeVar("T")

EXIT_SECONDS = 2.0  # grace period for a worker's call after rank 0 has exited
END = b""  # broadcast instead of a call
TEXT_BYTES = 1024

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
        connections: `multiprocessing` connections to all workers, in rank order, or to rank 0.
        processes: the workers that this process has spawned, in rank order.
    """

    def __init__(self, comm: Group, connections: Sequence[Any], processes: Sequence[Any] = ()):
        self.comm, self.rank, self.size = comm, comm.rank(), comm.size()
        self.processes, self._connections = processes, connections
        self._end_reason: str | None = None
        self._num_calls = 0
        self._deleted: list[int] = []  # keys of replicas, broadcast with the next call
        self._calls: queue.SimpleQueue[bytes] = queue.SimpleQueue()  # from rank 0
        self._lock = threading.Lock()
        if self.rank == 0:
            atexit.register(self.end)
        watch = self._watch_workers if self.rank == 0 else self._receive_calls
        threading.Thread(target=watch, daemon=True).start()

    def run(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Calls a function on all ranks; returns rank 0's result.

        Ctrl-C is deferred to the end of the call. An exception on one rank ends the group.

        Raises:
            UserError: the function raised it on all ranks, or the group has ended.
        """
        with self._lock, _defer_interrupt():
            if self._end_reason is not None:
                raise UserError(f"the rank group has shut down: {self._end_reason}.")
            self._num_calls += 1
            deleted = [self._deleted.pop() for _ in range(len(self._deleted))]
            call = partial(function, *args, **options)
            self._send(pickle.dumps((self._num_calls, deleted, call)))
            try:
                result = call()
            except BaseException as error:
                if not isinstance(error, UserError):
                    time.sleep(1)  # `_watch_workers` reports a lost worker and exits
                    self._end_reason = "a call failed on rank 0"
                    for process in self.processes:
                        process.kill()
                raise
            if isinstance(result, Replica):
                result.key = self._num_calls
                weakref.finalize(result, self._deleted.append, result.key)
            return result

    def serve(self) -> NoReturn:
        """Runs a worker: executes rank 0's calls until the group ends, then exits."""
        try:
            while call := self._calls.get():
                self._execute(*pickle.loads(call))
        except BaseException as error:
            print(f"tiny-llm: rank {self.rank}: {type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        mpi.finalize()
        os._exit(0)

    def _execute(self, key: int, deleted: list[int], call: Callable[[], Any]) -> None:
        for each in deleted:
            del _replicas[each]
        with suppress(UserError):  # raised on rank 0, too
            if isinstance(result := call(), Replica):
                _replicas[key] = result

    @contextmanager
    def agreement(self) -> Iterator[None]:
        """Turns a `ValueError` in the block on any rank into a `ModelError` on all ranks."""
        error = ""
        try:
            yield
        except ValueError as failure:
            error = str(failure).strip() or type(failure).__name__
        if errors := list(filter(None, gather_text(error, self.comm))):
            raise ModelError(error or errors[0])

    def end(self) -> None:
        """Ends the workers; later calls raise a `UserError`."""
        if self._end_reason is None:
            self._end_reason = "the process is exiting"
            self._send(END)
            mpi.finalize()

    def _send(self, call: bytes) -> None:
        for connection in self._connections:
            with suppress(OSError):  # `_watch_workers` reports the lost rank
                connection.send_bytes(call)

    def _receive_calls(self) -> NoReturn:
        """Receives a worker's calls; exits when rank 0, which reports a lost rank, has exited."""
        call = None
        with suppress(EOFError, OSError):
            while True:
                call = self._connections[0].recv_bytes()
                self._calls.put(call)
        # After END, the main thread exits, unless a collective waits for the call of rank 0.
        time.sleep(EXIT_SECONDS if call == END else 0)
        os._exit(1)

    def _watch_workers(self) -> None:
        """Exits the process with an error message if a worker is lost before the group ends."""
        from multiprocessing.connection import wait

        lost = self._connections.index(wait(self._connections)[0])
        if self._end_reason is not None:
            return
        reason = "connection closed"
        with suppress(IndexError, subprocess.TimeoutExpired):  # IndexError: not spawned
            status = self.processes[lost].wait(1)
            reason = f"killed by signal {-status}" if status < 0 else f"exit status {status}"
        text = f"rank {lost + 1} of {self.size} is lost: {reason}."
        try:
            for callback in on_worker_lost:
                callback(text)
        finally:
            with suppress(OSError):
                # Silences the ring's socket errors. The leading newline ends a line it has begun.
                stderr = os.dup(2)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                os.write(stderr, f"\ntiny-llm: {text}\n".encode())
            os._exit(1)


def gather_bytes(data: bytes, comm: Group) -> list[bytes]:
    """Gathers all ranks' bytes, of equal length."""
    parts = all_gather(mx.array(memoryview(data)), comm)  # type: ignore[arg-type]
    return [bytes(memoryview(part)) for part in parts]  # type: ignore[arg-type]


def gather_text(text: str, comm: Group) -> list[str]:
    data = text.encode()[:TEXT_BYTES].ljust(TEXT_BYTES)
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
