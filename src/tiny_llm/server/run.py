"""The process: a socket, the engine's thread, the event loop, and how they end.

SIGTERM or Ctrl-C: new requests get 503, those that run are finished, and the process exits with 0.
A second signal ends it at once. If the engine's thread dies or a step hangs, requests end with an
error, all stacks go to the log, and the process exits with 1.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import uvicorn

from .. import kernels
from ..engine.llm import LLM
from ..models.folder import read_json
from ..models.parallel.own import end_own_group
from ..models.tokenizer import open_tokenizer
from . import seam
from .app import make_app
from .bridge import Bridge
from .connection import Connection
from .engine_thread import EngineThread, Inbox
from .errors import ApiError
from .lifecycle import Lifecycle, Phase
from .metrics import Metrics
from .pacer import Pacer, seconds_between
from .prompts import Prompts
from .recording import Recording
from .sampling import read_defaults
from .server import Server
from .settings import Settings

log = logging.getLogger("tiny_llm.server")

TICK = 0.1  # seconds between two looks at the engine
STOPPED = "The server is shutting down, and its time to finish is over."


class Process:
    """Runs a server until it is told to stop.

    Args:
        settings: of the server.
        folder: of the model.
        load: makes the engine; called in the engine's thread.
        listening: a socket that is bound; None where something else brings the requests, which
            then calls `begin` instead of `run`.

    Attributes:
        server: what endpoints see.
    """

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        load: Callable[[], LLM],
        listening: socket.socket | None,
    ):
        self._settings = settings
        self._folder = folder
        self._socket = listening
        self._lifecycle = Lifecycle()
        self._inbox: Inbox = queue.SimpleQueue()
        self._pacer = Pacer(self._take, lambda: seconds_between(len(self._bridge.open)))
        self._bridge = Bridge(
            settings,
            self._inbox,
            self._lifecycle,
            Metrics(settings.model_name),
            self._pacer.wake_later,
        )
        self._engine = EngineThread(load, self._inbox, self._pacer.post)
        self._web: uvicorn.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_signals = 0
        self._continued = 0.0  # when it last went on after a pause
        self._status = 0
        self._recording = None if settings.record is None else Recording(settings.record)
        defaults = read_defaults(folder, settings.generation_config)
        self.server = Server(settings, self._bridge, defaults)

    def run(self) -> NoReturn:
        """Serves, and ends the process."""
        asyncio.run(self._run())
        raise AssertionError("the process has not ended")

    def begin(self) -> None:
        """Starts the engine, and the tasks that watch it, in the event loop that runs."""
        self._pacer.begin()
        tokenizer = asyncio.get_running_loop().run_in_executor(None, self._open_tokenizer)
        self._engine.start()
        self._start(self._get_ready(tokenizer))
        self._start(self._watch())

    async def _run(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            make_app(self.server),
            http=Connection,
            proxy_headers=False,  # nothing here asks where a request came from
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._web = _WebServer(config)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGTSTP, self._on_pause)
        self.begin()
        host, port = self._socket.getsockname()[:2]
        log.info("listening: http://%s:%d", host, port)
        await self._web.serve(sockets=[self._socket])
        for task in self._tasks:
            task.cancel()
        faulthandler.cancel_dump_traceback_later()
        if self._recording is not None:
            self._recording.close()
        self._inbox.put(seam.Stop())
        if not self._status:  # otherwise the engine's thread may never return
            await asyncio.to_thread(self._engine.join, 10)
        self._exit()

    def _exit(self) -> NoReturn:
        """Ends the process without taking the interpreter apart.

        Before Python 3.13, a thread that was joined may still destroy what MLX keeps for it. That
        needs the interpreter, and aborts the process if it is gone.
        """
        gc.collect()  # removes temporary files
        if not self._status:
            end_own_group()
        if kernels.found_faults():
            self._status = 1
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._status)

    # ---------------------------------------------------------------- beginning

    def _take(self, message: seam.FromEngine) -> None:
        if isinstance(message, seam.Loaded):
            self._bridge.loaded = message
            return  # `_get_ready` waits for the tokenizer
        self._bridge.deliver(message)
        if isinstance(message, seam.Died):
            self._start(self._give_up())

    def _open_tokenizer(self) -> Any:
        return open_tokenizer(self._folder, read_json(self._folder, "config.json"))

    async def _get_ready(self, tokenizer: asyncio.Future[Any]) -> None:
        self.server.loaded_prompts = Prompts(await tokenizer)
        while self._bridge.loaded is None:
            await asyncio.sleep(0.01)
        self._bridge.deliver(self._bridge.loaded)
        if self._recording is not None:
            self._recording.begin(self._bridge.loaded.config)
            self._bridge.watch(self._recording.take)
        log.info("ready: the model is %s", self._settings.model_name)

    # ---------------------------------------------------------------- the watchdog

    async def _watch(self) -> None:
        """Gives up when a step takes too long; a loop that hangs itself is ended by a timer."""
        limit, armed = self._settings.watchdog, 0.0
        while True:
            if time.monotonic() >= armed + 1:  # each time is a new thread
                armed = time.monotonic()
                faulthandler.dump_traceback_later(limit + 30, exit=True)
            began = self._engine.step_began
            if began is not None and time.monotonic() - max(began, self._continued) > limit:
                self._bridge.give_up(f"The engine has not finished a step for {limit:g} s.")
                await self._give_up()
                return
            await asyncio.sleep(TICK)

    async def _give_up(self) -> None:
        """Ends the process with 1, when clients have had a moment to read why."""
        log.error("giving up: %s", self._lifecycle.reason)
        faulthandler.dump_traceback(all_threads=True)
        self._status = 1
        await asyncio.sleep(seam.LAST_WORDS)
        self._stop()

    def _on_pause(self) -> None:
        """Ctrl-Z: while the process is stopped, the watchdog's time does not pass."""
        faulthandler.cancel_dump_traceback_later()
        os.kill(os.getpid(), signal.SIGSTOP)  # returns when the process is continued
        self._continued = time.monotonic()

    # ---------------------------------------------------------------- the end

    def _on_signal(self) -> None:
        self._num_signals += 1
        if self._num_signals > 1:
            log.warning("a second signal: stopping at once")
            os._exit(130)
        log.info("stopping when %d requests are finished", len(self._bridge.open))
        self._lifecycle.enter(Phase.DRAINING)
        self._start(self._drain())

    async def _drain(self) -> None:
        deadline = time.monotonic() + self._settings.drain_timeout
        while not self._bridge.is_idle and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        self._bridge.end_all(ApiError(503, STOPPED))
        while self._bridge.open and time.monotonic() < deadline + seam.LAST_WORDS:
            await asyncio.sleep(0.02)
        self._stop()

    def _stop(self) -> None:
        self._bridge.ending.set()
        if self._web is None:  # what brings the requests sees that the process is gone
            os._exit(self._status)
        self._web.should_exit = True

    def _start(self, work: Any) -> None:
        """Runs a coroutine beside the server; asyncio itself keeps no reference to it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _WebServer(uvicorn.Server):
    """uvicorn, which leaves signals to `Process`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Does nothing."""
        yield
