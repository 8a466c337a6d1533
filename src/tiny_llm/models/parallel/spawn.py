"""Ranks on this machine: rank 0 is this process, the others are programs that it starts."""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from .channel import Channel
from .group import NUM_THREADS_ENV, RankGroup, Worker, divide_threads, monitor_rank_0
from .rendezvous import Meeting, take

SECONDS_TO_END = 2.0


class LocalGroup(RankGroup):
    """Rank 0 and the processes that it started.

    Args:
        size: how many ranks, this one included.
        program: the module that the others run; its arguments are those of `local_worker`.
    """

    def __init__(self, size: int, program: str):
        threads = divide_threads(size)
        self._meeting = Meeting(size)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        channels: dict[int, Channel] = {}
        watched: dict[int, socket.socket] = {}
        for rank in range(1, size):
            steps, theirs = socket.socketpair()
            beats, their_beats = socket.socketpair()
            with theirs, their_beats:
                fds = theirs.fileno(), their_beats.fileno()
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, "-P", "-m", program, str(rank), *map(str, fds)],
                    env={**os.environ, NUM_THREADS_ENV: threads},
                    stdin=subprocess.DEVNULL,
                    pass_fds=fds,
                )
            channels[rank], watched[rank] = Channel(steps), beats
        super().__init__(size, channels, watched)
        for rank, answer in zip(channels, self.gather_replies(), strict=True):
            if answer is None:
                self._on_worker_lost(rank, "")
        own, *places = self._meeting.places()
        for channel, place in zip(channels.values(), places, strict=True):
            channel.send(place)
        # Now all ranks are about to connect.
        self.comm = take(0, own, [channel.connection for channel in channels.values()])

    def _wait_for_exit(self) -> None:
        for process in self._processes.values():
            try:
                process.wait(SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _exit_status(self, rank: int) -> str:
        try:
            status = self._processes[rank].wait(1)
        except subprocess.TimeoutExpired:
            return super()._exit_status(rank)
        return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"


def local_worker(arguments: Sequence[str]) -> Worker:
    """The side of a rank that `LocalGroup` has started.

    Args:
        arguments: rank, and the sockets' numbers.
    """
    rank, steps, beats = arguments
    heartbeat = monitor_rank_0(socket.socket(fileno=int(beats)))
    channel = Channel(socket.socket(fileno=int(steps)))
    channel.send("ready")
    place = channel.receive()
    if place is None:
        os._exit(1)  # rank 0 is gone
    return Worker(take(int(rank), place, [channel.connection]), channel, heartbeat)
