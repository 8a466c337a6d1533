"""The group of this process, which all its models use: a process connects its ranks once."""

import threading

from ...errors import UserError
from .group import RankGroup
from .launched import LaunchedGroup, is_launched, launched_group
from .local import LocalGroup

_own: RankGroup | None = None
_lock = threading.Lock()


def own_group(size: int, program: str) -> RankGroup:
    """The group of this process, which is rank 0; it is started when it is first wanted.

    Args:
        size: how many ranks, this one included.
        program: the module that ranks run which are started here.

    Raises:
        UserError: the process has a group of another size, or its group has ended.
    """
    global _own
    with _lock:
        if _own is None:
            _own = launched_group() if is_launched() else LocalGroup(size, program)
        group = _own
    if group.size != size:
        raise UserError(
            f"tensor_parallel_size is {size}, and this process already has a group of "
            f"{group.size} ranks; give {group.size}, or start another process."
        )
    group.check()
    return group


def join_launched() -> None:
    """Connects the ranks that a launcher has started; called by rank 0."""
    global _own
    with _lock:
        if _own is None:
            _own = launched_group()


def num_launched() -> int:
    """How many ranks a launcher has started; 1 if none has, or they are not connected yet."""
    return _own.size if isinstance(_own, LaunchedGroup) else 1


def end_own_group() -> None:
    """Ends the other ranks; called where the process ends without its exit handlers."""
    if _own is not None:
        _own.end()
