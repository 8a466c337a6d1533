"""Where the ranks of this machine meet: over MPI where that is installed, else in MLX's ring.

MPI's ranks are processes that `mpirun` has started, and rank 0 is the process that a user has
started. So rank 0 starts `mpirun` itself, with a small program in the place of each rank
(`rank_slot.py`), and the ranks take these places: a place is a few variables of the environment.
`mpirun` stays until rank 0 has ended, because the ranks hold on to it.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ...errors import UserError
from . import mpi
from .init import Group, init_timeout
from .rank_slot import SOCKET
from .ring import connect, free_addresses

COLLECTIVES = "TINY_LLM_COLLECTIVES"
BACKENDS = ("mpi", "ring")
PLACE = Path(__file__).with_name("rank_slot.py")
SHARED_MEMORY = Path("/dev/shm")
SECONDS_TO_START = 5.0  # mpirun's; it takes a quarter of one

# Of what mpirun says, the variables that make a place.
OF_A_PLACE = ("PMIX_", "OPAL_PREFIX")

Place = Mapping[str, Any]


def chosen_backend() -> str:
    """What ranks of this machine are to speak over: as asked, else MPI where that is installed.

    Raises:
        UserError: `TINY_LLM_COLLECTIVES` asks for something else, or for MPI, and it is not there.
    """
    asked = os.environ.get(COLLECTIVES)
    if asked not in (None, *BACKENDS):
        raise UserError(f"{COLLECTIVES} is '{asked}'; give mpi or ring.")
    has_mpi = mpi.mpirun() is not None
    if asked == "mpi" and not has_mpi:
        raise UserError(f"{COLLECTIVES} is mpi, which needs: pip install 'tiny-llm[mpi]'.")
    return asked or ("mpi" if has_mpi else "ring")


class NotStartedError(Exception):
    """`mpirun` ended before it said anything, or said nothing in time."""


class Meeting:
    """The places of ranks on this machine.

    Args:
        size: how many ranks.

    Raises:
        UserError: see `chosen_backend`.
    """

    def __init__(self, size: int):
        self._size = size
        self._started = _Mpirun(size) if chosen_backend() == "mpi" else None

    def places(self) -> Sequence[Place]:
        """A place for each rank, as `take` wants it.

        Raises:
            UserError: `mpirun` could not give them, and `TINY_LLM_COLLECTIVES` asks for them.
        """
        if self._started is not None:
            try:
                return [{"mpi": place} for place in self._started.places()]
            except NotStartedError as error:
                if COLLECTIVES in os.environ:  # which asks for MPI
                    raise UserError(f"mpirun did not start: {error}.") from error
        addresses = free_addresses(self._size)
        return [{"ring": addresses}] * self._size


def take(rank: int, place: Place, others: Sequence[socket.socket]) -> Group:
    """Takes a place; all ranks do so at about the same time.

    Args:
        rank: this process's number.
        place: one of a meeting's.
        others: see `init_timeout`; what happens if ranks do not come, too.
    """
    if "ring" in place:
        return connect(rank, place["ring"], others)
    with init_timeout(rank, others):
        return mpi.init(place["mpi"])


class _Mpirun:
    """`mpirun`, which gives places to so many ranks."""

    def __init__(self, size: int):
        shared = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        self._folder = tempfile.mkdtemp(prefix="tiny-llm-", dir=shared)
        self._size = size
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(os.path.join(self._folder, SOCKET))
        self._listening.listen(size)
        self._said = Path(self._folder, "said")
        with self._said.open("wb") as said:
            self._process = self._start(said)

    def _start(self, said: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [
                *(str(mpi.mpirun()), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"),
                *("-n", str(self._size), sys.executable, "-I", "-S", str(PLACE), self._folder),
            ],
            env={**os.environ, **mpi.ALLOW_ROOT_ENV, "TMPDIR": self._folder},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # signals are rank 0's affair
        )

    def places(self) -> list[dict[str, str]]:
        """The variables of each rank's place.

        Raises:
            NotStartedError: there are none.
        """
        found: dict[int, dict[str, str]] = {}
        deadline = time.monotonic() + SECONDS_TO_START
        own = {**mpi.SINGLE_HOST_ENV, "OMPI_MCA_btl_sm_backing_directory": self._folder}
        with self._listening:
            while len(found) < self._size:
                said = self._hear(deadline)
                place = {name: said[name] for name in said if name.startswith(OF_A_PLACE)}
                found[int(said["PMIX_RANK"])] = {**place, **own}
        return [found[rank] for rank in range(self._size)]

    def _hear(self, deadline: float) -> dict[str, str]:
        """The environment of the next process in a place."""
        self._listening.settimeout(0.1)
        while time.monotonic() < deadline and self._process.poll() is None:
            with suppress(TimeoutError):
                connection, _ = self._listening.accept()
                connection.settimeout(SECONDS_TO_START)
                with connection.makefile("rb") as stream:
                    said: dict[str, str] = json.loads(stream.readline())
                connection.detach()  # open until this process ends
                return said
        self._process.terminate()
        lines = self._said.read_text(errors="replace").splitlines()
        shutil.rmtree(self._folder)
        raise NotStartedError(
            next((line for line in lines if line.strip(" -")), "it said nothing in time")
        )
