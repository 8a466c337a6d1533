"""Generation: the part that the chat protocols share, from the prompt to the next turn."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.structured_output.validator import OutputValidator
from ..engine_client.messages import Precompute
from ..engine_client.request_stream import RequestStream
from ..http.errors import ApiError
from ..protocol.parsed_output import ParsedOutput
from ..protocol.prompts import ChatPrompt, ChatTemplateInput
from ..protocol.request_fields import OutputConstraint
from ..protocol.streaming import OutputSerializer, respond
from .served_model import ServedModel

log = logging.getLogger("tiny_llm.server")

WARMUP_DELAY = 0.05  # seconds from a response to prefix warm-up, if the engine is still idle

_validator = OutputValidator()
_warmups: set[asyncio.Task[None]] = set()  # keeps tasks alive: asyncio's references are weak


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
