"""A group of ranks: what rank 0 says to the others, and how all of them end together.

How the ranks came to be is left to `spawn.py`, whose rank 0 starts the others, and `launcher.py`,
where a launcher started all of them.
"""

import atexit
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from ...errors import UserError
from .channel import Channel
from .heartbeat import Heartbeat
from .init import Group

NUM_THREADS_ENV = "TINY_LLM_NUM_THREADS"
LOSS_DETECTION_SECONDS = 1.0


def divide_threads(num_ranks: int) -> str:
    """The threads of each of so many ranks on this machine, where the user gave no number."""
    return os.environ.setdefault(NUM_THREADS_ENV, str(max(1, (os.cpu_count() or 1) // num_ranks)))


class RankGroup:
    """Rank 0, and its connections to the others.

    Args:
        size: how many ranks there are.
        channels: what the others are told, by rank.
        beats: a second connection to each, on which both sides show that they are alive.

    Attributes:
        size: as given.
        comm: they, as MLX's collectives take them; set once they are connected.
        on_worker_lost: called, with the sentence, before a lost rank ends this process.
    """

    comm: Group

    def __init__(
        self, size: int, channels: Mapping[int, Channel], beats: Mapping[int, socket.socket]
    ):
        self.size = size
        self.on_worker_lost: list[Callable[[str], None]] = []
        self._channels = dict(channels)
        self._end_reason: str | None = None
        self._num_ids = 0
        self._loss_lock = threading.Lock()
        self._heartbeat = Heartbeat(beats, self._on_worker_lost)
        atexit.register(self.shutdown)

    def new_id(self) -> int:
        """A number that no other object of the group has."""
        self._num_ids += 1
        return self._num_ids

    def check(self) -> None:
        """Refuses to go on once the group has ended.

        Raises:
            UserError: it has.
        """
        if self._end_reason is not None:
            raise UserError(f"the group of ranks has ended ({self._end_reason}).")

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """Tells every other rank what to do."""
        self.check()
        for rank, channel in self._channels.items():
            try:
                channel.send(message)
            except OSError:
                self._on_worker_lost(rank, "")

    def gather_replies(self) -> Sequence[Any]:
        """The answer of every other rank to what it was told."""
        return [channel.receive() for channel in self._channels.values()]

    def abort(self, reason: str) -> None:
        """Ends the other ranks after a step that this one could not finish.

        If that was because a rank is lost, the watch ends this process, and has time for it here.
        """
        time.sleep(LOSS_DETECTION_SECONDS)
        self.shutdown(reason)

    def shutdown(self, reason: str = "the process ends") -> None:
        """Ends the other ranks."""
        if self._end_reason is not None:
            return
        self._end_reason, self._heartbeat.stopped = reason, True
        for channel in self._channels.values():
            with suppress(OSError):  # it is gone already
                channel.send({"do": "end"})
            channel.close()
        self._wait_for_exit()

    def _wait_for_exit(self) -> None:
        """Waits until the other ranks are gone, where that can be seen."""

    def _kill(self) -> None:
        """Ends the other ranks at once, where that is possible."""

    def _exit_status(self, rank: int) -> str:
        """What is known of how a rank ended that has said nothing."""
        del rank
        return "its connection ended"

    def _on_worker_lost(self, rank: int, reason: str) -> None:
        """A rank is gone or silent: ends the others, says so, and ends this process."""
        with self._loss_lock:  # the first that notices; nothing after it
            why = reason or self._exit_status(rank)
            self._kill()
            sentence = f"rank {rank} of {self.size} is lost ({why}), and the model with it."
            for callback in self.on_worker_lost:
                callback(sentence)
            errors = os.dup(2)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)  # the ring writes about lost sockets from its threads
            # On a line of its own: the ring may have been in the middle of one.
            os.write(errors, f"\ntiny-llm: {sentence}\n".encode())
            os._exit(1)


def monitor_rank_0(beats: socket.socket) -> Heartbeat:
    """Ends this process when rank 0 is gone or silent."""
    return Heartbeat({0: beats}, lambda *_: os._exit(1))


class Worker:
    """Another rank's side of a group.

    Args:
        comm: they, as MLX's collectives take them.
        channel: what rank 0 says.
        heartbeat: of rank 0.
        on_shutdown: called before this process ends because rank 0 says so.

    Attributes:
        rank, size: which rank this is, and of how many.
        comm, channel: as given.
    """

    def __init__(
        self,
        comm: Group,
        channel: Channel,
        heartbeat: Heartbeat,
        on_shutdown: Callable[[], None] | None = None,
    ):
        self.rank, self.size = comm.rank(), comm.size()
        self.comm, self.channel = comm, channel
        self._heartbeat = heartbeat
        self._on_shutdown = on_shutdown

    def shutdown(self) -> NoReturn:
        """Ends this process, as rank 0 says."""
        self._heartbeat.stopped = True
        if self._on_shutdown is not None:
            self._on_shutdown()
        os._exit(0)

    def fail(self, reason: str) -> None:
        """Tells rank 0 why this rank ends, and ends it."""
        self._heartbeat.report_failure(reason)
        os._exit(1)
