"""The ranks on this machine: rank 0 is this process, the others are programs that it starts.

A process has one group, which all its models use: MLX connects one ring in the life of a process.
"""

import atexit
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ...errors import UserError
from .messages import Channel
from .ring import Ring, connect, free_addresses
from .watch import Watch

THREADS = "TINY_LLM_NUM_THREADS"
SECONDS_TO_END = 2.0
SECONDS_TO_NOTICE = 1.0

_of_this_process: "LocalGroup | None" = None
_lock = threading.Lock()


def local_group(size: int, program: str) -> "LocalGroup":
    """The group of this process, which is started when it is first wanted.

    Args:
        size: how many ranks, this one included.
        program: the module that the others run; its arguments are `Worker`'s.

    Raises:
        UserError: the process has a group of another size, or its group has ended.
    """
    global _of_this_process
    with _lock:
        group = _of_this_process
        if group is None:
            group = _of_this_process = LocalGroup(size, program)
    if group.size != size:
        raise UserError(
            f"tensor_parallel_size is {size}, and this process already has a group of "
            f"{group.size} ranks; give {group.size}, or start another process."
        )
    group.check()
    return group


class LocalGroup:
    """Rank 0 and the processes that it started. See `local_group`.

    Attributes:
        size: how many ranks there are.
        ring: the ranks, as MLX's collectives take them.
        before_end: called, with the sentence, before a lost rank ends this process.
    """

    def __init__(self, size: int, program: str):
        self.size = size
        self.before_end: list[Callable[[str], None]] = []
        self._end_reason: str | None = None
        self._num_keys = 0
        threads = os.environ.setdefault(THREADS, str(max(1, (os.cpu_count() or 1) // size)))
        addresses = free_addresses(size)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._channels: dict[int, Channel] = {}
        watched: dict[int, socket.socket] = {}
        for rank in range(1, size):
            steps, theirs = socket.socketpair()
            beats, their_beats = socket.socketpair()
            with theirs, their_beats:
                fds = theirs.fileno(), their_beats.fileno()
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, "-P", "-m", program, str(rank), *map(str, fds), *addresses],
                    env={**os.environ, THREADS: threads},
                    stdin=subprocess.DEVNULL,
                    pass_fds=fds,
                )
            self._channels[rank], watched[rank] = Channel(steps), beats
        self._watch = Watch(watched, self._lose)
        atexit.register(self.end)
        for channel in self._channels.values():
            channel.receive()  # it is about to connect
        self.ring = connect(0, addresses)

    def new_key(self) -> int:
        """A number that no other object of the group has."""
        self._num_keys += 1
        return self._num_keys

    def check(self) -> None:
        """Refuses to go on once the group has ended.

        Raises:
            UserError: it has.
        """
        if self._end_reason is not None:
            raise UserError(f"the group of ranks has ended ({self._end_reason}).")

    def tell(self, message: Mapping[str, Any]) -> None:
        """Tells every other rank what to do."""
        self.check()
        for rank, channel in self._channels.items():
            try:
                channel.send(message)
            except OSError:
                self._lose(rank, "")

    def answers(self) -> Sequence[Any]:
        """The answer of every other rank to what it was told."""
        return [channel.receive() for channel in self._channels.values()]

    def give_up(self, reason: str) -> None:
        """Ends the other ranks after a step that this one could not finish.

        If that was because a rank is lost, the watch ends this process, and has time for it here.
        """
        time.sleep(SECONDS_TO_NOTICE)
        self.end(reason)

    def end(self, reason: str = "the process ends") -> None:
        """Ends the other ranks."""
        if self._end_reason is not None:
            return
        self._end_reason, self._watch.is_over = reason, True
        for channel in self._channels.values():
            with suppress(OSError):  # it is gone already
                channel.send({"do": "end"})
            channel.close()
        for process in self._processes.values():
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _lose(self, rank: int, reason: str) -> None:
        """A rank is gone or silent: ends the others, says so, and ends this process."""
        with _lock:  # the first that notices; nothing after it
            why = reason or self._status(rank)
            for process in self._processes.values():
                process.kill()
            sentence = f"rank {rank} of {self.size} is lost ({why}), and the model with it."
            for callback in self.before_end:
                callback(sentence)
            errors = os.dup(2)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), 2)  # the ring writes about lost sockets from its threads
            # On a line of its own: the ring may have been in the middle of one.
            os.write(errors, f"\ntiny-llm: {sentence}\n".encode())
            os._exit(1)

    def _status(self, rank: int) -> str:
        """How a process that is gone has ended."""
        try:
            status = self._processes[rank].wait(1)
        except subprocess.TimeoutExpired:
            return "its connection ended"
        return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"


class Worker:
    """The side of a rank that another process has started.

    Args:
        arguments: rank, the sockets' numbers, and the addresses of all ranks.

    Attributes:
        rank, size: which rank this is, and of how many.
        ring: as `LocalGroup`'s.
        channel: what rank 0 says.
    """

    def __init__(self, arguments: Sequence[str]):
        rank, steps, beats, *addresses = arguments
        self.rank, self.size = int(rank), len(addresses)
        self._watch = Watch({0: socket.socket(fileno=int(beats))}, lambda *_: os._exit(1))
        self.channel = Channel(socket.socket(fileno=int(steps)))
        self.channel.send("connecting")
        self.ring: Ring = connect(self.rank, addresses)

    def fail(self, reason: str) -> None:
        """Tells rank 0 why this rank ends, and ends it."""
        self._watch.say(reason)
        os._exit(1)
