"""Replica: a complete server driven by ASGI messages instead of a socket."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

from starlette.types import Message

from ...engine.engine_args import EngineArgs
from ...engine.factory import resolve_task
from ...engine.llm import LLM
from ..app import build_app
from ..http.errors import ApiError
from ..models.served_model import Phase
from ..process import ServerProcess
from ..settings import ModelSpec, Settings
from .gateway import ReplicaRequest


class Replica:
    """Handles a gateway's requests; `args.model` is a path."""

    def __init__(self, args: EngineArgs, settings: Settings):
        args = replace(args, task=resolve_task(args.task, args.model))
        spec = ModelSpec(settings.model_names, args, partial(LLM, **vars(args)))
        self._process = ServerProcess(settings, [spec], None)
        self._app = build_app(self._process.registry)

    async def start(self) -> None:
        self._process.start()
        await self._process.ready()

    def check_alive(self) -> None:
        """Health check; raises an `ApiError` (503) if the engine has failed."""
        model = self._process.registry.models[0]
        if model.phase is Phase.FAILED:
            raise ApiError(503, model.reason)

    async def handle_request(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """Yields the response's ASGI messages, in batches of all available ones.

        Closing the generator acts like `http.disconnect`: the request is aborted within a step.
        """
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        disconnected = asyncio.Event()
        request_messages = iter(
            [{"type": "http.request", "body": request.body, "more_body": False}]
        )

        async def receive() -> Message:
            for message in request_messages:
                return message
            await disconnected.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        task = asyncio.ensure_future(self._app(dict(request.scope), receive, send))
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while True:
                items = [await messages.get()]
                while not messages.empty():
                    items.append(messages.get_nowait())
                batch = [message for message in items if message is not None]
                if batch:
                    yield batch
                if len(batch) < len(items):
                    break
            await task
        finally:
            disconnected.set()
            if not task.done():
                await asyncio.wait([task])
