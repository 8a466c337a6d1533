"""State of each served model, shared by the endpoints."""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request

from ..engine.inputs.sampling_params import SamplingParams
from ..engine.structured_output.validator import OutputValidator
from ..models.heads.pooling import Task
from .engine_client.client import EngineClient
from .engine_client.models import ModelEngine, ModelRegistry
from .engine_client.request_handle import RequestHandle
from .http.errors import ApiError, bad_request, current_record
from .loading import LEASE, ModelLease
from .protocol.parsed_output import ParsedOutput
from .protocol.prompts import ChatPrompt, ChatTemplateInput, PromptRenderer
from .settings import BODY_BYTES_PER_TOKEN, MAX_BODY_BYTES, MIN_BODY_BYTES, Settings

log = logging.getLogger("tiny_llm.server")

# What a model does, by its task: verb phrases for error messages.
CAPABILITIES: Mapping[Task, str] = {
    "generate": "generates text",
    "embed": "computes embeddings",
    "score": "scores documents",
}
WARMUP_DELAY = 0.05  # seconds from a response to prefix warm-up, if the engine is still idle


@dataclass
class AppState:
    """State of a served model, stored in `app.state.models`."""

    settings: Settings
    engine: ModelEngine
    registry: ModelRegistry
    defaults: Mapping[str, Any]  # default sampling parameters
    created: int = field(default_factory=lambda: int(time.time()))
    validator: OutputValidator = field(default_factory=OutputValidator)
    _warmups: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def engine_client(self) -> EngineClient:
        return self.engine.client

    @property
    def prompts(self) -> PromptRenderer:
        """The prompt renderer; raises an `ApiError` (503) unless the model is ready."""
        self.engine_client.check_ready()
        renderer: PromptRenderer | None = self.engine.renderer
        assert renderer is not None
        return renderer

    async def wait_until_loaded(self, request: Request, is_stream: bool = False) -> None:
        """Loads the model if necessary; keeps it loaded until the response ends.

        Without on-demand loading, only checks that the model is ready. A response that is an event
        stream gets keep-alive comments during the load.
        """
        if not self.registry.is_on_demand:
            self.engine_client.check_ready()
            return
        lease: ModelLease = request.scope[LEASE]
        await lease.wait(self.engine, self.registry.request_load, request.receive, is_stream)

    async def submit(
        self,
        prompts: Sequence[Sequence[int]],
        params: SamplingParams,
        thinking_enabled: bool = False,
        lora: str | None = None,
    ) -> RequestHandle:
        """Waits until the prompts are queued; if one is rejected, aborts all with an `ApiError`."""
        handle = self.engine_client.submit(prompts, params, thinking_enabled, lora)
        current_record().tokens = handle
        try:
            await handle.accepted()
        except BaseException:
            handle.close()
            raise
        return handle

    def on_finished(
        self, handle: RequestHandle, prompt: ChatPrompt, outputs: Sequence[ParsedOutput]
    ) -> None:
        for output in outputs:
            self._schedule_validation(handle, output)
        if len(outputs) == 1:  # with several, the client may continue from any of them
            self._schedule_warmup(prompt, outputs[0], handle.lora)

    def _schedule_validation(self, handle: RequestHandle, output: ParsedOutput) -> None:
        constraint = handle.constraint
        if constraint is None or output.finish_reason == "length":
            return
        calls = list(zip((call.name for call in output.calls), output.arguments, strict=True))
        validation = asyncio.get_running_loop().run_in_executor(
            None, self.validator.find_violations, constraint, output.text, calls
        )
        validation.add_done_callback(_log_violations)

    def _schedule_warmup(self, prompt: ChatPrompt, output: ParsedOutput, lora: str | None) -> None:
        """Schedules precomputing the next turn's prompt, up to the user's message.

        Chat templates drop earlier reasoning, so the next prompt diverges from the cached tokens
        where the reasoning began. Outputs with tool calls are skipped, because clients differ in
        how much reasoning they send back with them.
        """
        is_complete = output.finish_reason == "stop" and bool(output.text) and not output.calls
        template_input = prompt.template_input
        if self.settings.prefix_warmup and is_complete and template_input is not None:
            task = asyncio.ensure_future(self._warm_up(template_input, output.text, lora))
            self._warmups.add(task)  # keeps the task alive: asyncio holds only a weak reference
            task.add_done_callback(self._warmups.discard)

    async def _warm_up(self, before: ChatTemplateInput, text: str, lora: str | None) -> None:
        await asyncio.sleep(WARMUP_DELAY)
        if not self.engine_client.is_idle:
            return
        try:
            prefix = await self.prompts.run(self.prompts.next_turn_prefix, before, text)
        except ApiError:  # the template rejects another turn
            return
        if self.engine_client.is_idle:
            self.engine_client.precompute(prefix, lora)

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.settings.model_names, *self.settings.adapter_names)

    def adapter_of(self, name: str | None) -> str | None:
        return name if name in self.settings.adapter_names else None


def _log_violations(validation: asyncio.Future[list[str]]) -> None:
    if not validation.cancelled():
        for violation in validation.result():
            log.warning("%s", violation)


def max_body_bytes(models: Sequence[AppState]) -> int:
    settings = models[0].settings
    if settings.max_body_bytes is not None:
        return settings.max_body_bytes
    infos = [model.engine_client.engine_info for model in models]
    context = max(0 if info is None else info.max_seq_len for info in infos)
    return min(max(MIN_BODY_BYTES, BODY_BYTES_PER_TOKEN * context), MAX_BODY_BYTES)


def get_app_states(request: Request) -> Sequence[AppState]:
    states: Sequence[AppState] = request.app.state.models
    return states


def get_app_state(request: Request, model: str | None = None, task: Task | None = None) -> AppState:
    """Returns the state of a served model, by default the first.

    Raises:
        ApiError: 404, the model is not served; 400, the model is for a different task.
    """
    models = get_app_states(request)
    state = models[0]
    if model is not None:
        named = {name: state for state in models for name in state.names}
        if model not in named:
            served = "', '".join(named)
            raise ApiError(
                404,
                f"The model '{model[:100]}' does not exist; this server serves '{served}'.",
                "model",
                "model_not_found",
            )
        state = named[model]
    if task not in (None, state.engine.spec.task):
        use = CAPABILITIES[state.engine.spec.task]
        raise bad_request(f"The model '{state.settings.model_name}' only {use}.", "model")
    return state
