"""Prefix warm-up: precomputes the known prefix of a conversation's next turn.

A thinking model's chat template drops earlier reasoning, so the next prompt diverges from the
cached tokens at the first completion. Once a completion has finished, the next prompt is known up
to the user's message. The engine precomputes that prefix while idle, so that the next turn only has
to prefill the new message.
"""

import asyncio

from ..engine_client.client import EngineClient
from ..http.errors import ApiError
from ..settings import Settings
from .output import ParsedOutput
from .prompts import ChatPrompt, PromptRenderer

IDLE_DELAY = 0.05  # seconds to wait after a completion


class PrefixWarmup:
    """Schedules precomputation of likely next turns.

    Args:
        settings: server settings; `prefix_warmup` enables it.
        engine_client: client of the engine thread.
    """

    def __init__(self, settings: Settings, engine_client: EngineClient):
        self._enabled = settings.prefix_warmup
        self._engine_client = engine_client
        self._tasks: set[asyncio.Task[None]] = set()

    def schedule(
        self,
        prompts: PromptRenderer,
        prompt: ChatPrompt,
        output: ParsedOutput,
        lora: str | None = None,
    ) -> None:
        """Schedules precomputation of the turn after a finished completion, with its adapter.

        Tool calls are skipped: how much reasoning is sent back with them depends on the client.
        """
        is_complete = output.finish_reason == "stop" and bool(output.text) and not output.calls
        if self._enabled and is_complete and prompt.template_input is not None:
            task = asyncio.ensure_future(self._precompute(prompts, prompt, output.text, lora))
            self._tasks.add(task)  # asyncio keeps no reference
            task.add_done_callback(self._tasks.discard)

    async def _precompute(
        self, prompts: PromptRenderer, prompt: ChatPrompt, text: str, lora: str | None
    ) -> None:
        await asyncio.sleep(IDLE_DELAY)
        if not self._is_idle():
            return
        assert prompt.template_input is not None
        try:
            prefix = await prompts.run(prompts.next_turn_prefix, prompt.template_input, text)
        except ApiError:  # the template rejects another turn
            return
        if self._is_idle():
            self._engine_client.precompute(prefix, lora)

    def _is_idle(self) -> bool:
        return self._engine_client.lifecycle.is_ready and self._engine_client.num_unfinished == 0
