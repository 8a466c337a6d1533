"""Exclusive use of an engine: one thread at a time, in one process.

MLX's default streams belong to a thread. Each engine has a stream that works in any thread instead,
so an engine may be built in one thread and used in another, for example by `asyncio.to_thread`.
"""

import functools
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import mlx.core as mx

from ...errors import UserError

P = ParamSpec("P")
R = TypeVar("R")

_unused_streams: list[mx.Stream] = []  # of deleted engines; a stream's thread never ends
_process: int | None = None  # id of the process in which the first engine was built


class ExclusiveUse:
    """The lock and the stream of an engine.

    Raises:
        UserError: this process was forked from one that has built an engine.
    """

    def __init__(self) -> None:
        global _process
        _process = _process or os.getpid()
        self._check_process()
        self._lock = threading.RLock()
        device = mx.default_device()
        unused = [stream for stream in _unused_streams if stream.device == device]
        self.stream = unused[0] if unused else mx.new_thread_unsafe_stream(device)
        if unused:
            _unused_streams.remove(self.stream)
        weakref.finalize(self, _unused_streams.append, self.stream)

    def acquire(self) -> bool:
        """Acquires the lock; reentrant within a thread.

        Raises:
            UserError: another thread uses the engine, or the process was forked.
        """
        self._check_process()
        if not self._lock.acquire(blocking=False):
            raise UserError(
                "this LLM is in use by another thread; use it from one thread at a time, e.g. with "
                "a lock, or send requests to `tiny-llm serve`."
            )
        return True

    def release(self) -> None:
        self._lock.release()

    @staticmethod
    def _check_process() -> None:
        if _process != os.getpid():
            raise UserError(
                "an LLM cannot be used in a process that was forked after an LLM had been built, "
                "because MLX's threads are missing there; start processes with the 'spawn' method."
            )


def exclusive(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Decorator: runs a method of an engine in exclusive use, on the engine's stream."""

    @functools.wraps(method)
    def wrapper(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        use = vars(self).get("_use") or vars(self).setdefault("_use", ExclusiveUse())
        is_acquired = False
        try:
            is_acquired = use.acquire()
            with mx.stream(use.stream):
                return method(self, *args, **kwargs)
        finally:
            if is_acquired:
                use.release()

    return wrapper


def recovering(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Decorator like `exclusive`; after an interrupt, also calls the engine's `recover`."""

    @functools.wraps(method)
    def wrapper(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except Exception:
            raise
        except BaseException:  # KeyboardInterrupt, at any line
            self.recover()
            raise

    return exclusive(wrapper)
