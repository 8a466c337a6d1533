"""Server process: socket, event loop, engine threads, shutdown.

On SIGTERM or Ctrl-C, new requests get 503 and running ones may finish within the drain timeout;
then the process exits with 0. A second signal exits immediately. If an engine thread dies or a step
hangs, requests end with an error and the process dumps all threads' stacks and exits with 1.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, NoReturn

import uvicorn

from .. import kernels
from ..engine.scheduling.events import Recorder
from ..models.parallel.launch import end_group
from .app import build_app
from .engine_client import messages
from .engine_client.metrics import Metrics
from .http.errors import ApiError
from .http.uvicorn_protocol import HttpProtocol, on_loop_error
from .models.model_registry import ModelRegistry
from .models.served_model import PHASE_MESSAGES, Phase, ServedModel
from .operations import report_events
from .settings import ModelSpec, Settings

log = logging.getLogger("tiny_llm.server")


class ServerProcess:
    """Runs a server until shutdown.

    Args:
        specs: the models; requests that do not name a model use the first.
        sock: a bound socket; None for a replica, which is started with `start` instead of `run`.
    """

    def __init__(self, settings: Settings, specs: Sequence[ModelSpec], sock: socket.socket | None):
        self._settings = settings
        self._socket = sock
        metrics = Metrics(spec.names[0] for spec in specs)
        self._models = [ServedModel(spec, settings, metrics, self._on_dead) for spec in specs]
        self.registry = ModelRegistry(self._models, settings, self._on_load_failed)
        self._uvicorn: uvicorn.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_signals = 0
        self._resumed_at = 0.0  # `time.monotonic()` at the last SIGCONT
        self._status = 0
        self._recorder = None if settings.record is None else Recorder(settings.record)

    def run(self) -> NoReturn:
        asyncio.run(self._run())
        raise AssertionError("the process has not exited")

    def start(self) -> None:
        for model in self._models:
            model.start()
        if self._recorder is not None:
            self._spawn(self._record(self._recorder))
        self._spawn(self.registry.run())
        self._spawn(self._run_watchdog())

    async def ready(self) -> None:
        """Waits until the first model is ready; raises an `ApiError` (503) if it fails."""
        acquired = self.registry.acquire(self._models[0])
        await acquired
        self.registry.release(self._models[0], acquired)

    async def _run(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        config = uvicorn.Config(
            build_app(self.registry),
            http=HttpProtocol,
            proxy_headers=False,  # client addresses are not used
            ws="none",
            log_config=None,  # uses the root logger's handler
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = _UvicornServer(config)
        for signal_number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(signal_number, self._on_signal)
        loop.add_signal_handler(signal.SIGTSTP, self._on_sigtstp)
        loop.set_exception_handler(on_loop_error)
        self._socket.listen(config.backlog)  # so that clients can connect once "ready" is logged
        self.start()
        host, port = self._socket.getsockname()[:2]
        log.info("listening: http://%s:%d", host, port)
        await self._spawn(self._uvicorn.serve(sockets=[self._socket]))
        for task in self._tasks:
            task.cancel()
        faulthandler.cancel_dump_traceback_later()
        if self._recorder is not None and self._recorder.close():
            log.info("recorded: %s", self._settings.record)
        for model in self._models:
            model.command_queue.put(messages.Shutdown())
        # After a failure, an engine thread may hang, so the threads are not joined.
        if not self._status:
            await asyncio.to_thread(self._join_threads, time.monotonic() + 10)
        self._exit()

    def _join_threads(self, deadline: float) -> None:
        for model in self._models:
            model.thread.join(max(0, deadline - time.monotonic()))

    def _exit(self) -> NoReturn:
        """Exits without finalizing the interpreter.

        Before Python 3.13, a joined thread may still be destroying MLX's thread-local data. That
        uses the interpreter, so during finalization it would abort the process.
        """
        gc.collect()  # runs the finalizers of temporary files
        if not self._status:
            end_group()
        if kernels.report_emulator_faults():
            self._status = 1
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self._status)

    async def _record(self, recorder: Recorder) -> None:
        with contextlib.suppress(ApiError):  # raised by `ready` if the engine has failed
            await self.ready()
            model = self._models[0]
            assert model.engine_info is not None
            recorder.begin(model.engine_info.config)

            def record(report: messages.StepReport) -> None:
                for event in report_events(report):
                    recorder(event)

            model.subscribe(record)

    def _on_load_failed(self, model: ServedModel, reason: str) -> None:
        model.on_engine_dead(reason)
        self._spawn(self._fail_process(is_user_error=True))

    def _on_dead(self) -> None:
        self._spawn(self._fail_process())

    async def _run_watchdog(self) -> None:
        """Fails the process if a step hangs; a timer exits if the event loop hangs."""
        limit, armed = self._settings.watchdog, 0.0
        interval = min(1.0, limit / 10)
        while True:
            # Re-arm at most once per second, because each call starts a thread.
            if time.monotonic() >= armed + 1:
                armed = time.monotonic()
                faulthandler.dump_traceback_later(limit + 30, exit=True)
            for model in self._models:
                started = model.thread.step_started_at
                if started is None or time.monotonic() - max(started, self._resumed_at) <= limit:
                    continue
                model.on_engine_dead(f"The engine did not finish a step within {limit:g} s.")
                await self._fail_process()
                return
            await asyncio.sleep(interval)

    async def _fail_process(self, is_user_error: bool = False) -> None:
        """Exits with 1, after a grace period in which clients receive the error.

        Prints all threads' stacks, or after a user's mistake only the reason, and exits with 2.
        """
        reason = next(model.reason for model in self._models if model.phase is Phase.FAILED)
        for model in self._models:
            model.on_engine_dead(reason)
        self.registry.fail_waiting(ApiError(503, reason))
        log.error("exiting after a failure: %s", reason)
        if not is_user_error:
            faulthandler.dump_traceback(all_threads=True)
        self._status = 2 if is_user_error else 1
        await asyncio.sleep(messages.SHUTDOWN_GRACE_SECONDS)
        self._request_exit()

    def _on_sigtstp(self) -> None:
        """Suspends the process; the watchdog ignores the time until SIGCONT."""
        faulthandler.cancel_dump_traceback_later()
        os.kill(os.getpid(), signal.SIGSTOP)  # returns on SIGCONT
        self._resumed_at = time.monotonic()

    def _on_signal(self) -> None:
        self._num_signals += 1
        if self._num_signals > 1:
            log.warning("received a second signal: exiting immediately")
            os._exit(130)
        num_running = sum(len(model.in_flight) for model in self._models)
        log.info("draining: %d requests in flight", num_running)
        for model in self._models:
            model.transition(Phase.DRAINING)
        self.registry.fail_waiting(ApiError(503, PHASE_MESSAGES[Phase.DRAINING]))
        self._spawn(self._drain())

    async def _drain(self) -> None:
        await self._wait_until_idle(self._settings.drain_timeout)
        message = "The server is shutting down; the drain timeout has expired."
        for model in self._models:
            model.fail_all(ApiError(503, message))
        await self._wait_until_idle(messages.SHUTDOWN_GRACE_SECONDS)
        self._request_exit()

    async def _wait_until_idle(self, seconds: float) -> None:
        await asyncio.gather(*(model.wait_until_idle(seconds) for model in self._models))

    def _request_exit(self) -> None:
        for model in self._models:
            model.is_shutting_down = True
            model.report_phase()
        if self._uvicorn is None:  # a replica, whose supervisor detects the exit
            os._exit(self._status)
        self._uvicorn.should_exit = True

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Starts a task and keeps a reference to it; asyncio's is only weak."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class _UvicornServer(uvicorn.Server):
    """uvicorn server without signal handlers; `ServerProcess` installs its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
