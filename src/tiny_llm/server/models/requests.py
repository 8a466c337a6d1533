"""Requests: their model, and the chat protocols' way from prompt to next turn."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.outputs.output_parser import OutputParser, ParsedDelta, ReasoningDelta, TextDelta
from ...engine.scheduling.request import StreamOutput
from ...engine.structured_output.relaxation import OutputValidator
from ...engine.tool_calls.format import ToolCallDelta
from ...models.output_heads import Task
from ..engine_client.messages import Precompute
from ..engine_client.request_stream import RequestStream
from ..http.errors import ApiError, bad_request
from ..protocol.prompts import ChatPrompt, ChatTemplateInput
from ..protocol.request_fields import OutputConstraint, RequestBody
from ..protocol.streaming import OutputSerializer, respond
from ..settings import BODY_BYTES_PER_TOKEN, MAX_BODY_BYTES, MIN_BODY_BYTES
from .model_registry import LEASE, ModelLease, ModelRegistry
from .served_model import ServedModel

log = logging.getLogger("tiny_llm.server")

# What a model does, by its task: verb phrases for error messages.
CAPABILITIES: Mapping[Task, str] = {
    "generate": "generates text",
    "embed": "computes embeddings",
    "score": "scores documents",
}
WARMUP_DELAY = 0.05  # seconds from a response to prefix warm-up, if the engine is still idle

_validator = OutputValidator()
_warmups: set[asyncio.Task[None]] = set()  # keeps tasks alive: asyncio's references are weak


def get_models(request: Request) -> Sequence[ServedModel]:
    registry: ModelRegistry = request.app.state.registry
    return registry.models


def get_model(request: Request, name: str | None = None, task: Task | None = None) -> ServedModel:
    """Returns a served model, by default the first.

    Raises:
        ApiError: 404, the model is not served; 400, the model is for a different task.
    """
    models = get_models(request)
    model = models[0]
    if name is not None:
        named = {each: model for model in models for each in model.names}
        if name not in named:
            served = "', '".join(named)
            raise ApiError(
                404,
                f"The model '{name[:100]}' does not exist; this server serves '{served}'.",
                "model",
                "model_not_found",
            )
        model = named[name]
    if task not in (None, model.task):
        use = CAPABILITIES[model.task]
        raise bad_request(f"The model '{model.name}' only {use}.", "model")
    return model


async def use_model(
    request: Request, body: RequestBody, task: Task | None = None, is_stream: bool = False
) -> ServedModel:
    """Returns a request's model, loaded until the response ends; checks the body's fields.

    Without on-demand loading, raises an `ApiError` (503) unless the model is loaded. With it, an
    event stream gets keep-alive comments during the load.
    """
    model = get_model(request, body.model, task)
    body.check_fields()
    registry: ModelRegistry = request.app.state.registry
    if registry.is_on_demand:
        lease: ModelLease = request.scope[LEASE]
        await lease.wait(model, request.receive, is_stream)
    else:
        model.check_ready()
    return model


def max_body_bytes(models: Sequence[ServedModel]) -> int:
    if models[0].settings.max_body_bytes is not None:
        return models[0].settings.max_body_bytes
    infos = [model.engine_info for model in models]
    context = max(0 if info is None else info.max_seq_len for info in infos)
    return min(max(MIN_BODY_BYTES, BODY_BYTES_PER_TOKEN * context), MAX_BODY_BYTES)


@dataclass
class ParsedOutput:
    """A completion, accumulated from stream outputs.

    Args:
        include_reasoning: whether to return reasoning; its tokens are counted either way.

    Attributes:
        calls: tool calls; for each streamed call, its first delta.
        tokens: number of tokens, of which `reasoning_tokens` are in the reasoning.
        finish_reason: "stop", "length" or "tool_calls"; None until the end.
    """

    parser: OutputParser
    first_tool_call_only: bool = False
    include_reasoning: bool = True
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    tokens: int = 0
    reasoning_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, output: StreamOutput) -> list[ParsedDelta]:
        """Adds an output; returns the deltas, without text that is held back."""
        was_thinking = self.parser.in_reasoning
        deltas = self.parser.feed(output.text)
        self.tokens += len(output.token_ids)
        if was_thinking or self.parser.in_reasoning:
            self.reasoning_tokens += len(output.token_ids)
        if output.finish_reason is not None:
            at_stop_string = isinstance(output.stop_reason, str)
            deltas += self.parser.finish(output.finish_reason != "stop" or at_stop_string)
        deltas = [delta for delta in deltas if self._add(delta)]
        if output.finish_reason is not None:
            self.stop_reason = output.stop_reason
            is_complete = output.finish_reason == "stop" and not self.parser.has_incomplete_call
            self.finish_reason = (
                "tool_calls" if self.calls and is_complete else output.finish_reason
            )
        return deltas

    def _add(self, delta: ParsedDelta) -> bool:
        match delta:
            case TextDelta(text):
                self.text += text
            case ReasoningDelta() if not self.include_reasoning:
                return False
            case ReasoningDelta(text):
                self.reasoning += text
            case ToolCallDelta():
                if not delta.is_new:
                    # The later deltas of a dropped call have an id that is not in `calls`.
                    is_last = delta.id == self.calls[-1].id
                    self.arguments[-1] += delta.arguments if is_last else ""
                    return is_last
                if self.calls and self.first_tool_call_only:
                    return False
                self.calls.append(delta)
                self.arguments.append(delta.arguments)
        return True


@dataclass
class Generation:
    """A chat request in the engine; `outputs` has one element per completion."""

    model: ServedModel
    prompt: ChatPrompt
    params: SamplingParams
    stream: RequestStream
    outputs: Sequence[ParsedOutput]


async def generate(
    request: Request,
    model: ServedModel,
    body: Any,
    prompt: ChatPrompt,
    params: SamplingParams,
    make_serializer: Callable[[Generation], OutputSerializer],
) -> Response:
    """Submits a chat request, whose protocol's schema is `body`'s class; returns the response."""
    constraint, is_stream = params.structured_outputs, bool(body.stream)
    make_parser = partial(
        model.prompts.output_parser, prompt, body.usable_tools, constraint, is_stream
    )
    stream = await model.submit([prompt.token_ids], params, prompt.thinking_enabled, body.model)
    outputs = [ParsedOutput(make_parser(), body.first_call_only) for _ in range(params.n)]
    generation = Generation(model, prompt, params, stream, outputs)
    stream.on_finished = partial(_on_finished, generation, model.adapter_of(body.model))
    serializer, keep_alive = make_serializer(generation), model.settings.keep_alive
    return await respond(request, stream, serializer, is_stream, keep_alive)


def _on_finished(generation: Generation, lora: str | None) -> None:
    constraint, outputs = generation.params.structured_outputs, generation.outputs
    for output in outputs:
        if constraint is not None and output.finish_reason != "length":
            _schedule_validation(constraint, output)
    if len(outputs) == 1:  # with several, the client may continue from any of them
        _schedule_warmup(generation, outputs[0], lora)


def _schedule_validation(constraint: OutputConstraint, output: ParsedOutput) -> None:
    calls = list(zip((call.name for call in output.calls), output.arguments, strict=True))
    validation = asyncio.get_running_loop().run_in_executor(
        None, _validator.find_violations, constraint, output.text, calls
    )
    validation.add_done_callback(_log_violations)


def _log_violations(validation: asyncio.Future[list[str]]) -> None:
    if not validation.cancelled():
        for violation in validation.result():
            log.warning("%s", violation)


def _schedule_warmup(generation: Generation, output: ParsedOutput, lora: str | None) -> None:
    """Schedules precomputing the next turn's prompt, up to the user's message.

    Chat templates drop earlier reasoning, so the next prompt diverges from the cached tokens where
    the reasoning began. Outputs with tool calls are skipped, because clients differ in how much
    reasoning they send back with them.
    """
    model, before = generation.model, generation.prompt.template_input
    is_complete = output.finish_reason == "stop" and bool(output.text) and not output.calls
    if model.settings.prefix_warmup and is_complete and before is not None:
        task = asyncio.ensure_future(_warm_up(model, before, output.text, lora))
        _warmups.add(task)
        task.add_done_callback(_warmups.discard)


async def _warm_up(
    model: ServedModel, before: ChatTemplateInput, text: str, lora: str | None
) -> None:
    await asyncio.sleep(WARMUP_DELAY)
    if not model.is_idle:
        return
    try:
        prefix = await model.prompts.run(model.prompts.next_turn_prefix, before, text)
    except ApiError:  # the template rejects another turn
        return
    if model.is_idle:
        model.command_queue.put(Precompute(prefix, lora))
