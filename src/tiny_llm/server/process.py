"""Server process: socket, event loop, engine thread, shutdown.

On SIGTERM or Ctrl-C, new requests get 503, running requests finish, and the process exits with 0. A
second signal exits at once. If the engine thread dies or a step hangs, requests end with an error,
all stacks are logged, and the process exits with 1.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, NoReturn

import uvicorn

from .. import kernels
from ..engine.llm import LLM
from ..models.checkpoint.safe_io import read_json
from ..models.parallel.default_group import shutdown_default_group
from ..models.tokenizer.tokenizer import open_tokenizer
from .app import build_app
from .context import AppState
from .engine_client import messages
from .engine_client.client import EngineClient
from .engine_client.coalescer import Coalescer, coalescing_delay
from .engine_client.engine_thread import CommandQueue, EngineThread
from .engine_client.lifecycle import Lifecycle, Phase
from .engine_client.metrics import Metrics
from .http.errors import ApiError
from .http.uvicorn_protocol import HttpProtocol
from .ops.event_log import EventLogWriter
from .protocol.prompts import PromptRenderer
from .protocol.sampling import default_sampling_params
from .settings import Settings

log = logging.getLogger("tiny_llm.server")

POLL_INTERVAL = 0.1  # seconds between watchdog checks
DRAIN_TIMED_OUT = "The server is shutting down; the drain timeout has expired."


class ServerProcess:
    """Runs a server until shutdown.

    Args:
        settings: server settings.
        folder: model folder, for the tokenizer and sampling defaults.
        load: creates the engine; called in the engine thread.
        sock: a bound socket; None for a replica, whose owner calls `start` instead of `run`.

    Attributes:
        server: state shared with the endpoints.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        load: Callable[[], LLM],
        sock: socket.socket | None,
    ):
        self._settings = settings
        self._folder = folder
        self._socket = sock
        self._lifecycle = Lifecycle()
        self._command_queue: CommandQueue = queue.SimpleQueue()
        self._coalescer = Coalescer(
            self._on_engine_message, lambda: coalescing_delay(len(self._engine_client.in_flight))
        )
        self._engine_client = EngineClient(
            settings,
            self._command_queue,
            self._lifecycle,
            Metrics(settings.model_name),
            self._coalescer.schedule_wake,
        )
        self._engine = EngineThread(load, self._command_queue, self._coalescer.post)
        self._uvicorn: uvicorn.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_signals = 0
        self._resumed_at = 0.0  # time of the last SIGCONT, on the clock of `time.monotonic`
        self._status = 0
        self._event_log = None if settings.record is None else EventLogWriter(settings.record)
        defaults = default_sampling_params(folder, settings.generation_config)
        self.server = AppState(settings, self._engine_client, defaults)

    def run(self) -> NoReturn:
        """Serves until shutdown, then exits the process."""
        asyncio.run(self._run())
        raise AssertionError("the process has not exited")

    def start(self) -> None:
        """Starts the engine thread and the background tasks on the running event loop."""
        self._coalescer.start()
        tokenizer = asyncio.get_running_loop().run_in_executor(None, self._open_tokenizer)
        self._engine.start()
        self._ready = self._spawn(self._wait_until_ready(tokenizer))
        self._spawn(self._run_watchdog())

    async def ready(self) -> None:
        """Waits until the server is ready, after `start`.

        Raises:
            ApiError: 503, the engine failed.
        """
        await self._ready
        self._engine_client.check_ready()

    async def _run(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            build_app(self.server),
            http=HttpProtocol,
            proxy_headers=False,  # client addresses are not used
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = _UvicornServer(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGTSTP, self._on_sigtstp)
        self.start()
        host, port = self._socket.getsockname()[:2]
        log.info("listening: http://%s:%d", host, port)
        await self._uvicorn.serve(sockets=[self._socket])
        for task in self._tasks:
            task.cancel()
        faulthandler.cancel_dump_traceback_later()
        if self._event_log is not None:
            self._event_log.close()
        self._command_queue.put(messages.Shutdown())
        if not self._status:  # after a failure the thread may never return
            await asyncio.to_thread(self._engine.join, 10)
        self._exit()

    def _exit(self) -> NoReturn:
        """Exits without finalizing the interpreter.

        Before Python 3.13, a joined thread may still be destroying MLX's thread-local data, which
        needs the interpreter and aborts the process during finalization.
        """
        gc.collect()  # runs finalizers of temporary files
        if not self._status:
            shutdown_default_group()
        if kernels.report_emulator_faults():
            self._status = 1
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._status)

    # ---------------------------------------------------------------- startup

    def _on_engine_message(self, message: messages.EngineMessage) -> None:
        self._engine_client.handle_message(message)
        if isinstance(message, messages.EngineDead):
            self._spawn(self._fail_process())

    def _open_tokenizer(self) -> Any:
        return open_tokenizer(self._folder, read_json(self._folder, "config.json"))

    async def _wait_until_ready(self, tokenizer: asyncio.Future[Any]) -> None:
        self.server.loaded_renderer = PromptRenderer(await tokenizer)
        await self._engine_client.wait_until_loaded()
        if self._engine_client.engine_info is None:  # the engine failed
            return
        self._lifecycle.transition(Phase.READY)
        if self._event_log is not None:
            self._event_log.begin(self._engine_client.engine_info.config)
            self._engine_client.subscribe(self._event_log.take)
        log.info("ready: the model is %s", self._settings.model_name)

    # ---------------------------------------------------------------- watchdog

    async def _run_watchdog(self) -> None:
        """Fails the process after an overlong step; a timer kills it if the loop hangs."""
        limit, armed = self._settings.watchdog, 0.0
        while True:
            if time.monotonic() >= armed + 1:  # each call starts a new thread
                armed = time.monotonic()
                faulthandler.dump_traceback_later(limit + 30, exit=True)
            started = self._engine.step_started_at
            if started is not None and time.monotonic() - max(started, self._resumed_at) > limit:
                self._engine_client.on_engine_dead(
                    f"The engine has not finished a step within {limit:g} s."
                )
                await self._fail_process()
                return
            await asyncio.sleep(POLL_INTERVAL)

    async def _fail_process(self) -> None:
        """Exits with 1, after a grace period in which clients receive the error."""
        log.error("exiting after a failure: %s", self._lifecycle.reason)
        faulthandler.dump_traceback(all_threads=True)
        self._status = 1
        await asyncio.sleep(messages.SHUTDOWN_GRACE_SECONDS)
        self._request_exit()

    def _on_sigtstp(self) -> None:
        """Ctrl-Z: suspends the process; the watchdog ignores the time until SIGCONT."""
        faulthandler.cancel_dump_traceback_later()
        os.kill(os.getpid(), signal.SIGSTOP)  # returns on SIGCONT
        self._resumed_at = time.monotonic()

    # ---------------------------------------------------------------- shutdown

    def _on_signal(self) -> None:
        self._num_signals += 1
        if self._num_signals > 1:
            log.warning("second signal: exiting at once")
            os._exit(130)
        log.info("draining: %d requests in flight", len(self._engine_client.in_flight))
        self._lifecycle.transition(Phase.DRAINING)
        self._spawn(self._drain())

    async def _drain(self) -> None:
        await self._engine_client.wait_until_idle(self._settings.drain_timeout)
        self._engine_client.fail_all(ApiError(503, DRAIN_TIMED_OUT))
        await self._engine_client.wait_until_idle(messages.SHUTDOWN_GRACE_SECONDS)
        self._request_exit()

    def _request_exit(self) -> None:
        self._engine_client.shutting_down.set()
        if self._uvicorn is None:  # a replica: its owner detects the exit
            os._exit(self._status)
        self._uvicorn.should_exit = True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a background task and keeps a reference to it, which asyncio does not."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _UvicornServer(uvicorn.Server):
    """uvicorn server without signal handlers; `ServerProcess` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """No-op."""
        yield
