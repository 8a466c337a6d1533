"""The process-wide rank group: a process connects its ranks once, for all models."""

import threading

from ...errors import UserError
from .group import RankGroup
from .launcher import LaunchedGroup, is_launched, launched_group
from .spawn import LocalGroup

_default_group: RankGroup | None = None
_lock = threading.Lock()


def get_default_group(size: int, program: str) -> RankGroup:
    """Returns the group of this process, rank 0; the first call connects it.

    Args:
        size: number of ranks, rank 0 included.
        program: module that spawned workers run.

    Raises:
        UserError: the process has a group of another size, or its group has shut down.
    """
    global _default_group
    with _lock:
        if _default_group is None:
            _default_group = launched_group() if is_launched() else LocalGroup(size, program)
        group = _default_group
    if group.size != size:
        raise UserError(
            f"tensor_parallel_size is {size}, and this process already has a group of "
            f"{group.size} ranks; give {group.size}, or start another process."
        )
    group.check()
    return group


def init_default_group() -> None:
    """Connects rank 0 to the workers started by a launcher."""
    global _default_group
    with _lock:
        if _default_group is None:
            _default_group = launched_group()


def num_launched_ranks() -> int:
    """Number of ranks started by a launcher; 1 without a launcher or before connecting."""
    return _default_group.size if isinstance(_default_group, LaunchedGroup) else 1


def shutdown_default_group() -> None:
    """Shuts down the workers, for a process exit that skips exit handlers."""
    if _default_group is not None:
        _default_group.shutdown()
