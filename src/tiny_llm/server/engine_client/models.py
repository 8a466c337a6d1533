"""Model loading on demand within a memory budget, and unloading when idle.

Models load one at a time, in the order they were first requested. When the memory budget is
exhausted, the least recently used model is evicted, idle models first. If it is still in use, new
requests for it wait until it is loaded again, after the model that replaces it, so that neither
starves.
"""

import asyncio
import logging
import queue
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ...errors import UserError
from ..http.errors import ApiError
from ..settings import ModelSpec, Settings
from .client import EngineClient
from .engine_thread import CommandQueue, EngineThread
from .lifecycle import Lifecycle, Phase
from .metrics import Metrics

log = logging.getLogger("tiny_llm.server")

IDLE_CHECK_INTERVAL = 0.2  # seconds


class ModelEngine:
    """A served model: its engine thread, client, renderer and reference count.

    Args:
        open_renderer: creates the prompt renderer from the tokenizer and the tool-call format.

    Attributes:
        renderer: the `PromptRenderer`; None while the model is not loaded.
        ref_count: number of requests using the model, which is unloaded only at 0.
        last_used: `time.monotonic()` at the last load or change of `ref_count`.
        is_closing: whether the model is about to be unloaded and accepts no new requests.
        memory_bytes: memory requirement as of the last load.
    """

    def __init__(
        self,
        spec: ModelSpec,
        settings: Settings,
        metrics: Metrics,
        open_renderer: Callable[[Any, str], Any],
        on_dead: Callable[[], None],
    ):
        self.spec = spec
        self.renderer: Any = None
        self.ref_count = 0
        self.last_used = time.monotonic()
        self.is_closing = False
        self.memory_bytes = 0
        self._open_renderer = open_renderer
        self._waiters: list[asyncio.Future[None]] = []
        self._unused = asyncio.Event()
        command_queue: CommandQueue = queue.SimpleQueue()
        phase = Phase.LOADING if spec.is_pinned else Phase.UNLOADED
        self.client = EngineClient(settings, command_queue, Lifecycle(phase), metrics, on_dead)
        self.thread = EngineThread(spec.load, command_queue, self.client.coalescer.post)

    @property
    def name(self) -> str:
        return self.client.model_name

    @property
    def is_loaded(self) -> bool:
        """Whether the model's memory is allocated."""
        return self.client.engine_info is not None

    @property
    def is_evictable(self) -> bool:
        return self.is_loaded and not self.spec.is_pinned

    @property
    def needs_loading(self) -> bool:
        has_waiters = any(not waiter.done() for waiter in self._waiters)
        return not self.is_loaded and (has_waiters or self.spec.is_pinned)

    def start(self) -> None:
        self.client.coalescer.start()
        self.thread.start()

    def acquire(self, request_load: Callable[["ModelEngine"], None]) -> asyncio.Future[None]:
        """Returns a future that acquires a reference once the model is loaded."""
        phase = self.client.lifecycle.phase
        if phase in (Phase.DRAINING, Phase.FAILED):
            self.client.check_ready()
        acquired: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if phase is Phase.READY and not self.is_closing:
            self._add_ref(acquired)
            return acquired
        self._waiters = [waiter for waiter in self._waiters if not waiter.done()]
        if len(self._waiters) > self.client.settings.max_queue:
            raise ApiError(
                429,
                f"{len(self._waiters)} requests are waiting for model '{self.name}'; retry later.",
                code="rate_limit_exceeded",
                headers={"Retry-After": "1"},
            )
        self._waiters.append(acquired)
        request_load(self)
        return acquired

    def release(self, acquired: asyncio.Future[None]) -> None:
        """Releases a reference from `acquire`, or cancels the wait for it."""
        if not acquired.done():
            acquired.cancel()
        elif acquired.exception() is None:
            self.ref_count -= 1
            self.last_used = time.monotonic()
            if not self.ref_count:
                self._unused.set()

    def _add_ref(self, acquired: asyncio.Future[None]) -> None:
        self.ref_count += 1
        self.last_used = time.monotonic()
        self._unused.clear()
        acquired.set_result(None)

    def wake_waiters(self, error: ApiError | None = None) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():  # the client has disconnected
                continue
            if error is None:
                self._add_ref(waiter)
            else:
                waiter.set_exception(error)

    async def load(self) -> str | None:
        """Loads the engine; returns the reason on failure."""
        client = self.client
        await client.load()
        if client.load_error is None and client.engine_info is not None:
            tokenizer = client.engine_info.tokenizer
            self.renderer = self._open_renderer(tokenizer, self.spec.args.tool_call_parser)
            self.renderer.max_tokens = client.max_seq_len
            self.last_used = time.monotonic()
            client.lifecycle.transition(Phase.READY)
            client.report_phase()
        return client.load_error

    async def unload(self) -> None:
        self.is_closing = True
        if self.ref_count:
            await self._unused.wait()
        await self.client.wait_until_idle(None)  # aborted requests end at the next step
        self.renderer = None
        await self.client.unload()
        self.is_closing = False


class ModelRegistry:
    """Loads and unloads a server's models.

    Args:
        max_memory: maximum total `memory_bytes` of loaded models; None for no limit.
        idle_unload: idle seconds after which a model is unloaded; None disables idle unloading.
        on_load_failed: called when a pinned model fails to load.
    """

    def __init__(
        self,
        engines: Sequence[ModelEngine],
        max_memory: int | None,
        idle_unload: float | None,
        on_load_failed: Callable[[ModelEngine, str], None],
    ):
        self._engines = engines
        self._max_memory = max_memory
        self._idle_unload = idle_unload
        self._on_load_failed = on_load_failed
        self._queue: asyncio.Queue[ModelEngine] = asyncio.Queue()
        self._queued: set[ModelEngine] = set()  # models in `_queue`, and the model being loaded
        # If False, requests get 503 until the model has loaded, and it is never unloaded.
        self.is_on_demand = len(engines) > 1 or idle_unload is not None

    def request_load(self, engine: ModelEngine) -> None:
        if engine not in self._queued:
            self._queued.add(engine)
            self._queue.put_nowait(engine)

    async def run(self) -> None:
        pinned = [engine for engine in self._engines if engine.spec.is_pinned]
        for engine in pinned:
            self.request_load(engine)
        if not pinned:
            log.info("ready: models are loaded on first use")
        while True:
            interval = None if self._idle_unload is None else IDLE_CHECK_INTERVAL
            try:
                engine = await asyncio.wait_for(self._queue.get(), interval)
            except TimeoutError:
                await self._unload_idle()
                continue
            error = await self._make_room(engine) if engine.needs_loading else None
            if engine.needs_loading:  # clients may have disconnected in the meantime
                await self._load(engine, error)
            self._queued.remove(engine)

    async def _load(self, engine: ModelEngine, error: str | None) -> None:
        started = time.monotonic()
        error = error or await engine.load()
        if error is None:
            seconds = time.monotonic() - started
            log.info("ready: the model is %s (loaded in %.2f s)", engine.name, seconds)
            engine.wake_waiters()
            return
        if engine.spec.is_pinned:
            self._on_load_failed(engine, error)
            return
        log.error("the model '%s' cannot be loaded: %s", engine.name, error)
        engine.wake_waiters(
            ApiError(
                503,
                f"The model '{engine.name}' could not be loaded; see the server's log.",
                "model",
                "model_load_failed",
            )
        )

    async def _make_room(self, engine: ModelEngine) -> str | None:
        """Unloads models until `engine` fits in the memory budget; returns why it does not."""
        with suppress(UserError):  # `load` reports it
            engine.memory_bytes = await asyncio.to_thread(engine.spec.memory_bytes)
        while self._max_memory is not None:
            loaded = [other for other in self._engines if other.is_loaded and other is not engine]
            used = sum(other.memory_bytes for other in loaded)
            if used + engine.memory_bytes <= self._max_memory:
                return None
            evictable = [other for other in loaded if other.is_evictable]
            if not evictable:
                return (
                    f"it needs {engine.memory_bytes:,} bytes besides {used:,} of pinned models; "
                    f"raise --max-memory {self._max_memory:,}."
                )
            await self._unload(
                min(evictable, key=lambda other: (other.ref_count > 0, other.last_used))
            )
        return None

    async def _unload_idle(self) -> None:
        assert self._idle_unload is not None
        for engine in self._engines:
            idle = time.monotonic() - engine.last_used
            if engine.is_evictable and not engine.ref_count and idle >= self._idle_unload:
                await self._unload(engine)

    async def _unload(self, engine: ModelEngine) -> None:
        await engine.unload()
        log.info("unloaded: the model %s", engine.name)
