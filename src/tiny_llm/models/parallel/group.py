"""Rank group: broadcasts from rank 0, and coordinated exit of all ranks.

`spawn.py` spawns a group from rank 0; `launcher.py` joins a group started by a launcher.
"""

import atexit
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from ...errors import UserError
from . import mpi
from .channel import Buffer, Channel
from .heartbeat import Heartbeat
from .init import STDERR_FILENO, Group

NUM_THREADS_ENV = "TINY_LLM_NUM_THREADS"
LOSS_DETECTION_SECONDS = 1.0


def divide_threads(num_ranks: int) -> str:
    """Sets `NUM_THREADS_ENV`, if unset, to cores / `num_ranks`; returns it."""
    return os.environ.setdefault(NUM_THREADS_ENV, str(max(1, (os.cpu_count() or 1) // num_ranks)))


class RankGroup(ABC):
    """Rank 0 and its connections to the workers, by rank."""

    comm: Group  # set once the ranks are connected

    def __init__(
        self, size: int, channels: Mapping[int, Channel], heartbeats: Mapping[int, socket.socket]
    ):
        self.size = size
        # Called with the error message before this process exits.
        self.on_worker_lost: list[Callable[[str], None]] = []
        self._channels = dict(channels)
        self._end_reason: str | None = None
        self._num_ids = 0
        self._loss_lock = threading.Lock()
        self._heartbeat = Heartbeat(heartbeats, self._on_worker_lost)
        atexit.register(self.shutdown)

    def new_id(self) -> int:
        """Allocates a key, unique within the group, for a checkpoint or a model."""
        self._num_ids += 1
        return self._num_ids

    def check(self) -> None:
        if self._end_reason is not None:
            raise UserError(f"the rank group has shut down: {self._end_reason}.")

    def broadcast(self, message: Mapping[str, Any], payloads: Sequence[Buffer] = ()) -> None:
        self.check()
        for index, (rank, channel) in enumerate(self._channels.items()):
            try:
                channel.send(message, *payloads[index : index + 1])
            except OSError:
                self._on_worker_lost(rank, "")

    def gather_replies(self) -> Sequence[Any]:
        """Receives one reply per worker, in rank order; None for a lost worker."""
        return [channel.receive() for channel in self._channels.values()]

    def gather_payloads(self) -> list[bytes]:
        payloads = []
        for rank, channel in self._channels.items():
            payload = channel.receive_bytes()
            if payload is None:
                self._on_worker_lost(rank, "")
            payloads.append(payload or b"")
        return payloads

    def abort(self, reason: str) -> None:
        """Shuts down after a failed step on this rank.

        Sleeps first, so that if a lost rank caused the failure, the heartbeat thread reports that
        rank and exits this process.
        """
        time.sleep(LOSS_DETECTION_SECONDS)
        self.shutdown(reason)

    def shutdown(self, reason: str = "the process is exiting") -> None:
        if self._end_reason is not None:
            return
        self._end_reason, self._heartbeat.stopped = reason, True
        for channel in self._channels.values():
            with suppress(OSError):  # the worker has exited
                channel.send({"op": "shutdown"})
            channel.connection.close()
        self._wait_for_exit()

    @abstractmethod
    def _wait_for_exit(self) -> None:
        """Waits for the workers to exit."""

    @abstractmethod
    def _kill_child_processes(self) -> None:
        """Kills the processes that this rank has started."""

    def _exit_status(self, rank: int) -> str:
        del rank
        return "connection closed"

    def _on_worker_lost(self, rank: int, reason: str) -> None:
        with self._loss_lock:  # never released, so that only the first loss is reported
            reason = reason or self._exit_status(rank)
            self._kill_child_processes()
            message = f"rank {rank} of {self.size} is lost: {reason}."
            for callback in self.on_worker_lost:
                callback(message)
            stderr = os.dup(STDERR_FILENO)
            with open(os.devnull, "wb") as devnull:
                os.dup2(devnull.fileno(), STDERR_FILENO)  # silences the ring threads' socket errors
            # The leading newline ends a partial line that the ring may have written.
            os.write(stderr, f"\ntiny-llm: {message}\n".encode())
            os._exit(1)


def monitor_rank_0(connection: socket.socket) -> Heartbeat:
    """Starts a heartbeat that terminates this process when rank 0 dies or hangs."""
    return Heartbeat({0: connection}, lambda *_: os._exit(1))


class Worker:
    """Worker side of a rank group; `channel` receives rank 0's commands."""

    def __init__(self, comm: Group, channel: Channel, heartbeat: Heartbeat):
        self.rank, self.size = comm.rank(), comm.size()
        self.comm, self.channel = comm, channel
        self._heartbeat = heartbeat

    def shutdown(self) -> NoReturn:
        self._heartbeat.stopped = True
        mpi.finalize()
        os._exit(0)

    def fail(self, reason: str) -> NoReturn:
        self._heartbeat.report_failure(reason)
        os._exit(1)
