"""Local ranks: this process is rank 0 and spawns the workers.

The ranks communicate over MLX's ring on the loopback interface.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from .channel import Channel
from .group import NUM_THREADS_ENV, RankGroup, Worker, divide_threads, monitor_rank_0
from .init import connect_to_other_ranks, free_addresses

EXIT_TIMEOUT_SECONDS = 2.0


class LocalGroup(RankGroup):
    """Rank 0 and workers that it spawns, each running the module `program`."""

    def __init__(self, size: int, program: str):
        threads = divide_threads(size)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        channels: dict[int, Channel] = {}
        heartbeats: dict[int, socket.socket] = {}
        for rank in range(1, size):
            steps, worker_steps = socket.socketpair()
            heartbeat, worker_heartbeat = socket.socketpair()
            with worker_steps, worker_heartbeat:
                fds = worker_steps.fileno(), worker_heartbeat.fileno()
                self._processes[rank] = subprocess.Popen(
                    [sys.executable, "-P", "-m", program, str(rank), *map(str, fds)],
                    env={**os.environ, NUM_THREADS_ENV: threads},
                    stdin=subprocess.DEVNULL,
                    pass_fds=fds,
                )
            channels[rank], heartbeats[rank] = Channel(steps), heartbeat
        super().__init__(size, channels, heartbeats)
        for rank, reply in zip(channels, self.gather_replies(), strict=True):
            if reply is None:
                self._on_worker_lost(rank, "")
        addresses = free_addresses(size)
        for channel in channels.values():
            channel.send(addresses)
        self.comm = connect_to_other_ranks(0, addresses)

    def _wait_for_exit(self) -> None:
        for process in self._processes.values():
            try:
                process.wait(EXIT_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _kill_child_processes(self) -> None:
        for process in self._processes.values():
            process.kill()

    def _exit_status(self, rank: int) -> str:
        try:
            status = self._processes[rank].wait(1)
        except subprocess.TimeoutExpired:
            return super()._exit_status(rank)
        return f"killed by signal {-status}" if status < 0 else f"exit status {status}"


def local_worker(arguments: Sequence[str]) -> Worker:
    """Connects a worker; `arguments` are its rank, command fd and heartbeat fd."""
    rank, steps, heartbeat = arguments
    monitor = monitor_rank_0(socket.socket(fileno=int(heartbeat)))
    channel = Channel(socket.socket(fileno=int(steps)))
    channel.send("ready")
    addresses = channel.receive()
    if addresses is None:
        os._exit(1)  # rank 0 has exited
    return Worker(connect_to_other_ranks(int(rank), addresses), channel, monitor)
