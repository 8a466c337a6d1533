"""The next turn of a conversation, computed before it is asked for.

A thinking model's template leaves out what was thought before. So the next turn's tokens differ
from those that were computed where the first answer began, and the prefix cache ends there. But
they are known as soon as an answer is finished, up to the user's next words. While the engine has
nothing to do, it computes them, and the next answer begins as soon as the new words are read.
"""

import asyncio

from ..engine_client.client import EngineClient
from ..http.errors import ApiError
from ..settings import Settings
from .output import ParsedOutput
from .prompts import ChatPrompt, PromptRenderer

IDLE_DELAY = 0.05  # seconds without a request, before the engine's time is used for this


class PrefixWarmup:
    """Expects the next turns of conversations.

    Args:
        settings: whether it does so.
        engine_client: to the engine.
    """

    def __init__(self, settings: Settings, engine_client: EngineClient):
        self._is_on = settings.prefix_warmup
        self._engine_client = engine_client
        self._tasks: set[asyncio.Task[None]] = set()

    def schedule(self, prompts: PromptRenderer, prompt: ChatPrompt, answer: ParsedOutput) -> None:
        """Takes note of an answer to which the user may reply.

        A call of a tool is not expected to be followed: it depends on the client which of the
        thoughts before the call come back.
        """
        is_whole = answer.finish_reason == "stop" and bool(answer.text) and not answer.calls
        if self._is_on and is_whole and prompt.template_input is not None:
            task = asyncio.ensure_future(self._prepare(prompts, prompt, answer.text))
            self._tasks.add(task)  # asyncio itself keeps no reference to it
            task.add_done_callback(self._tasks.discard)

    async def _prepare(self, prompts: PromptRenderer, prompt: ChatPrompt, said: str) -> None:
        await asyncio.sleep(IDLE_DELAY)
        if not self._is_idle():
            return
        assert prompt.template_input is not None
        try:
            known = await prompts.run(prompts.next_turn_prefix, prompt.template_input, said)
        except ApiError:  # a template that takes this conversation no further
            return
        if self._is_idle():
            self._engine_client.precompute(known)

    def _is_idle(self) -> bool:
        return self._engine_client.lifecycle.is_ready and self._engine_client.num_unfinished == 0
