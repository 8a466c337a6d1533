"""One replica: the whole server, with an engine of its own, and messages instead of a socket."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from starlette.types import Message

from ... import demo
from ...engine.llm import LLM
from ...models.checkpoint.layout import has_tokenizer
from ..app import build_app
from ..http.errors import ApiError
from ..process import ServerProcess
from ..settings import Settings
from .gateway import ReplicaRequest


class Replica:
    """Answers requests that a gateway passes on.

    Args:
        folder: of the model.
        settings: of the server.
        engine: arguments of `LLM`, except the model.
    """

    def __init__(self, folder: Path, settings: Settings, engine: dict[str, Any]):
        texts = folder if has_tokenizer(folder) else demo.TARGET_PATH

        def load() -> LLM:
            return LLM(str(folder), seed=None, **engine)

        self._process = ServerProcess(settings, texts, load, None)
        self._app = build_app(self._process.server)

    async def start(self) -> None:
        """Loads the model; returns when `/ready` would say that it is.

        Raises:
            ApiError: the engine failed.
        """
        self._process.start()
        await self._process.ready()

    def check_alive(self) -> None:
        """Refuses if the engine is broken: what started this replica then starts another.

        Raises:
            ApiError: 503 with the reason.
        """
        lifecycle = self._process.server.engine_client.lifecycle
        if lifecycle.phase == "broken":
            raise ApiError(503, lifecycle.reason)

    async def handle_request(self, request: ReplicaRequest) -> AsyncGenerator[list[Message]]:
        """The ASGI messages of an answer, as many at once as are there.

        Closing or cancelling it is what `http.disconnect` is over a socket: the request's place in
        the engine is free within a step.
        """
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        left = asyncio.Event()
        asked = iter([{"type": "http.request", "body": request.body, "more_body": False}])

        async def receive() -> Message:
            for message in asked:
                return message
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            messages.put_nowait(message)

        working = asyncio.ensure_future(self._app(dict(request.scope), receive, send))
        working.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while True:
                ready = [await messages.get()]
                while not messages.empty():
                    ready.append(messages.get_nowait())
                told = [message for message in ready if message is not None]
                if told:
                    yield told
                if len(told) < len(ready):
                    break
            await working
        finally:
            left.set()
            if not working.done():
                await asyncio.wait([working])
