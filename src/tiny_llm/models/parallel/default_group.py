"""Process-wide rank group, connected once and shared by all models."""

import threading

from ...errors import UserError
from .group import RankGroup
from .launcher import LaunchedGroup, is_launched, launched_group
from .spawn import LocalGroup

_default_group: RankGroup | None = None
_lock = threading.Lock()


def get_default_group(size: int, program: str) -> RankGroup:
    """Returns the group whose rank 0 is this process; the first call connects it.

    Raises:
        UserError: the existing group has a different size or has shut down.
    """
    global _default_group
    with _lock:
        if _default_group is None:
            _default_group = launched_group() if is_launched() else LocalGroup(size, program)
        group = _default_group
    if group.size != size:
        raise UserError(
            f"tensor_parallel_size is {size}, but this process already has a group of "
            f"{group.size} ranks; use {group.size}, or start another process."
        )
    group.check()
    return group


def init_default_group() -> None:
    global _default_group
    with _lock:
        if _default_group is None:
            _default_group = launched_group()


def num_launched_ranks() -> int:
    """Number of launched ranks; 1 without a launcher or before connecting."""
    return _default_group.size if isinstance(_default_group, LaunchedGroup) else 1


def shutdown_default_group() -> None:
    """Shuts down the workers; needed before an exit that skips exit handlers."""
    if _default_group is not None:
        _default_group.shutdown()
