"""ModelRegistry: loading on demand within a memory budget, unloading, requests' leases.

Models load one at a time, in the order they were first requested. When the memory budget is
exhausted, the least recently used model is evicted, idle models first. If it is still in use, new
requests for it wait until it is loaded again, after the model that replaces it, so that neither
starves.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...errors import UserError
from ..http.errors import ApiError, timeout_error
from ..protocol.streaming import (
    KEEP_ALIVE_COMMENT,
    error_event,
    stream_headers,
    wait_for_disconnect,
)
from ..settings import Settings
from .served_model import Phase, ServedModel, queue_full_error

log = logging.getLogger("tiny_llm.server")

IDLE_CHECK_INTERVAL = 0.2  # seconds
LEASE = "tiny_llm.model_lease"  # key of the request's lease in the ASGI scope


class _Usage:
    """A model's users: requests that hold a reference, and requests that wait for the load."""

    def __init__(self) -> None:
        self.num_references = self.num_waiting = 0
        self.last_used = time.monotonic()
        self.is_closing = False  # whether the model is about to be unloaded
        self.unused = asyncio.Event()  # set while there are no references
        self.unused.set()
        self._loaded: asyncio.Future[None] | None = None  # done at the end of the next load

    def wait(self) -> asyncio.Future[None]:
        """Returns a future of the next load, shared by all that wait for it."""
        if self._loaded is None:
            self._loaded = asyncio.get_running_loop().create_future()
        self.num_waiting += 1
        return self._loaded

    def end_wait(self, error: ApiError | None = None) -> None:
        loaded, self._loaded = self._loaded, None
        num_waiting, self.num_waiting = self.num_waiting, 0
        if error is None:
            self.add_references(num_waiting)
        if loaded is None:
            return
        if error is None:
            loaded.set_result(None)
        else:
            loaded.set_exception(error)
            loaded.exception()  # marks it as retrieved: all clients may have disconnected

    def add_references(self, number: int) -> None:
        self.num_references += number
        self.last_used = time.monotonic()
        if self.num_references:
            self.unused.clear()
        else:
            self.unused.set()


class ModelRegistry:
    """Loads and unloads a server's models.

    Args:
        models: requests that do not name a model use the first.
        on_load_failed: called with the reason if a pinned model fails to load.

    Attributes:
        is_on_demand: if False, requests get 503 until the model has loaded, and it is never
            unloaded.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        settings: Settings,
        on_load_failed: Callable[[ServedModel, str], None],
    ):
        self.models = models
        self.settings = settings
        self.is_on_demand = len(models) > 1 or settings.idle_unload is not None
        self._usage = {model: _Usage() for model in models}
        self._on_load_failed = on_load_failed
        self._queue: asyncio.Queue[ServedModel] = asyncio.Queue()
        self._queued: set[ServedModel] = set()  # models in `_queue`, and the model being loaded

    def acquire(self, model: ServedModel) -> asyncio.Future[None]:
        """Requests a reference to a model, which keeps it loaded until `release`.

        The future is done once the model is loaded; its exception is an `ApiError`.
        """
        usage = self._usage[model]
        if model.phase in (Phase.DRAINING, Phase.FAILED):
            model.check_ready()
        if model.phase is Phase.READY and not usage.is_closing:
            usage.add_references(1)
            acquired = asyncio.get_running_loop().create_future()
            acquired.set_result(None)
            return acquired
        if usage.num_waiting > model.settings.max_queue:
            raise queue_full_error(
                f"{usage.num_waiting} requests are waiting for model '{model.name}'; retry later."
            )
        self._request_load(model)
        return usage.wait()

    def release(self, model: ServedModel, acquired: asyncio.Future[None]) -> None:
        """Releases a reference from `acquire`, or ends the wait for it."""
        if not acquired.done():
            self._usage[model].num_waiting -= 1
        elif acquired.exception() is None:
            self._usage[model].add_references(-1)

    def fail_waiting(self, error: ApiError) -> None:
        for usage in self._usage.values():
            usage.end_wait(error)

    def _request_load(self, model: ServedModel) -> None:
        if model not in self._queued:
            self._queued.add(model)
            self._queue.put_nowait(model)

    def _needs_loading(self, model: ServedModel) -> bool:
        is_wanted = model.spec.is_pinned or self._usage[model].num_waiting > 0
        return is_wanted and not model.is_loaded

    async def run(self) -> None:
        pinned = [model for model in self.models if model.spec.is_pinned]
        for model in pinned:
            self._request_load(model)
        if not pinned:
            log.info("ready: models are loaded on first use")
        while True:
            interval = None if self.settings.idle_unload is None else IDLE_CHECK_INTERVAL
            try:
                model = await asyncio.wait_for(self._queue.get(), interval)
            except TimeoutError:
                await self._unload_idle()
                continue
            error = await self._make_room(model) if self._needs_loading(model) else None
            if self._needs_loading(model):  # clients may have disconnected in the meantime
                await self._load(model, error)
            self._queued.remove(model)

    async def _load(self, model: ServedModel, error: str | None) -> None:
        started, usage = time.monotonic(), self._usage[model]
        error = error or await model.load()
        if error is None:
            seconds = time.monotonic() - started
            log.info("ready: the model is %s (loaded in %.2f s)", model.name, seconds)
            usage.end_wait()
        elif model.spec.is_pinned:
            self._on_load_failed(model, error)
        else:
            log.error("the model '%s' cannot be loaded: %s", model.name, error)
            message = f"The model '{model.name}' could not be loaded; see the server's log."
            usage.end_wait(ApiError(503, message, "model", "model_load_failed"))

    async def _make_room(self, model: ServedModel) -> str | None:
        """Unloads models until `model` fits in the memory budget; returns why it does not."""
        with suppress(UserError):  # `load` reports it
            model.memory_bytes = await asyncio.to_thread(model.spec.memory_bytes)
        max_memory = self.settings.max_memory
        while max_memory is not None:
            loaded = [other for other in self.models if other.is_loaded and other is not model]
            used = sum(other.memory_bytes for other in loaded)
            if used + model.memory_bytes <= max_memory:
                return None
            evictable = [other for other in loaded if not other.spec.is_pinned]
            if not evictable:
                return (
                    f"it needs {model.memory_bytes:,} bytes besides {used:,} of pinned models; "
                    f"raise --max-memory {max_memory:,}."
                )
            await self._unload(min(evictable, key=self._eviction_order))
        return None

    def _eviction_order(self, model: ServedModel) -> tuple[bool, float]:
        usage = self._usage[model]
        return usage.num_references > 0, usage.last_used

    async def _unload_idle(self) -> None:
        assert self.settings.idle_unload is not None
        for model in self.models:
            is_used, last_used = self._eviction_order(model)
            is_expired = time.monotonic() - last_used >= self.settings.idle_unload
            if model.is_loaded and not model.spec.is_pinned and not is_used and is_expired:
                await self._unload(model)

    async def _unload(self, model: ServedModel) -> None:
        usage = self._usage[model]
        usage.is_closing = True
        await usage.unused.wait()
        await model.wait_until_idle(None)  # aborted requests end at the next step
        await model.unload()
        usage.is_closing = False
        log.info("unloaded: the model %s", model.name)


class ModelLease:
    """A request's lease on a model: keeps it loaded until the response ends.

    If a streaming request waits longer than the keep-alive interval, a keep-alive comment starts
    its response. A later error response becomes an error event in the protocol of `path`.
    """

    def __init__(self, registry: ModelRegistry, path: str, send: Send):
        self._registry = registry
        self._path = path
        self._send = send
        self._held: tuple[ServedModel, asyncio.Future[None]] | None = None
        self._is_started = False  # whether a keep-alive comment has started the response
        self._is_error = False  # whether the response after the comments is an error

    async def wait(self, model: ServedModel, receive: Receive, is_stream: bool) -> None:
        """Waits for the load; raises an `ApiError` on failure, timeout or disconnect."""
        acquired = self._registry.acquire(model)
        self._held = model, acquired
        if acquired.done():
            acquired.result()
            return
        timeout = model.settings.request_timeout
        disconnected = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            async with asyncio.timeout(timeout):
                while not acquired.done():
                    await asyncio.wait(
                        (acquired, disconnected),
                        timeout=model.settings.keep_alive,
                        return_when="FIRST_COMPLETED",
                    )
                    if disconnected.done():
                        raise ApiError(499, "The client has disconnected.")
                    if is_stream and not acquired.done():
                        await self._send_comment()
        except TimeoutError:
            raise timeout_error(timeout) from None
        finally:
            disconnected.cancel()
        acquired.result()

    async def _send_comment(self) -> None:
        if not self._is_started:
            self._is_started = True
            headers = [(name.encode(), value.encode()) for name, value in stream_headers().items()]
            await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._send(
            {"type": "http.response.body", "body": KEEP_ALIVE_COMMENT, "more_body": True}
        )

    async def send(self, message: Message) -> None:
        """Sends an ASGI message; after a keep-alive comment, errors become events."""
        if not self._is_started:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._is_error = message["status"] >= 400
        elif self._is_error:
            body = json.loads(message["body"])
            await self._send({**message, "body": error_event(self._path, body)})
        else:
            await self._send(message)

    def release(self) -> None:
        """Releases the model, or cancels the wait for it; a no-op before `wait`."""
        if self._held is not None:
            self._registry.release(*self._held)


class LeaseMiddleware:
    def __init__(self, app: ASGIApp, registry: ModelRegistry):
        self._app = app
        self._registry = registry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        lease = scope[LEASE] = ModelLease(self._registry, scope["path"], send)
        try:
            await self._app(scope, receive, lease.send)
        finally:
            lease.release()
