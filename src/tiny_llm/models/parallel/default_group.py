"""The group of this process, which all its models use: a process connects its ranks once."""

import threading

from ...errors import UserError
from .group import RankGroup
from .launcher import LaunchedGroup, is_launched, launched_group
from .spawn import LocalGroup

_default_group: RankGroup | None = None
_lock = threading.Lock()


def get_default_group(size: int, program: str) -> RankGroup:
    """The group of this process, which is rank 0; it is started when it is first wanted.

    Args:
        size: how many ranks, this one included.
        program: the module that ranks run which are started here.

    Raises:
        UserError: the process has a group of another size, or its group has ended.
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
    """Connects the ranks that a launcher has started; called by rank 0."""
    global _default_group
    with _lock:
        if _default_group is None:
            _default_group = launched_group()


def num_launched_ranks() -> int:
    """How many ranks a launcher has started; 1 if none has, or they are not connected yet."""
    return _default_group.size if isinstance(_default_group, LaunchedGroup) else 1


def shutdown_default_group() -> None:
    """Ends the other ranks; called where the process ends without its exit handlers."""
    if _default_group is not None:
        _default_group.shutdown()
