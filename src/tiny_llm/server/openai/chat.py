"""`POST /v1/chat/completions`: handler and response serialization."""

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...engine.inputs.sampling_params import SamplingParams
from ...engine.scheduling.outputs import StreamOutput
from ..context import AppState, get_app_state
from ..engine_client.client import RequestHandle
from ..http.errors import ApiError, JsonResponse
from ..http.openapi import ERROR_RESPONSES, streaming_responses
from ..protocol.logprobs import TokenTextDecoder, prompt_logprobs_field
from ..protocol.output_parser import ParsedDelta, ParsedOutput, ReasoningDelta, TextDelta
from ..protocol.prompts import ChatPrompt
from ..protocol.streaming import (
    TEXT_PLACEHOLDER,
    EventSourceResponse,
    EventTemplate,
    error_event,
    full_response,
    sse_event,
)
from ..protocol.tool_calls import ToolCallDelta
from ..protocol.usage import SYSTEM_FINGERPRINT, openai_usage
from .chat_schema import ChatCompletionRequest

PATH = "/v1/chat/completions"

router = APIRouter()


@router.post(
    PATH,
    tags=["OpenAI"],
    response_class=JsonResponse,
    responses=streaming_responses(ERROR_RESPONSES),
)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Creates a chat completion. With `stream`, sends server-sent events."""
    server = get_app_state(request, body.model, "generate")
    lora = server.adapter_of(body.model)
    body.check_supported()
    await server.wait_until_loaded(request, bool(body.stream))
    prompts = server.prompts
    prompt = await prompts.run(_render_prompt, server, body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    limit = body.max_completion_tokens or body.max_tokens
    params = body.sampling_params(
        server.defaults, limit, logprobs, body.constraint(), body.prompt_logprobs
    )
    handle = await server.submit([prompt.token_ids], params, prompt.thinking_enabled, lora)
    serializer = ChatSerializer(server, body, handle, prompt, params)
    if not body.stream:
        return await full_response(request.receive, handle, serializer.full_response())
    return EventSourceResponse(serializer, handle, server.settings.keep_alive)


def _render_prompt(server: AppState, body: ChatCompletionRequest) -> ChatPrompt:
    server.prompts.check_template_kwargs(body.chat_template_kwargs)
    messages = [message.to_template(number) for number, message in enumerate(body.messages)]
    return server.prompts.render_chat(
        messages,
        body.usable_tools or None,
        body.template_variables(),
        body.add_generation_prompt is not False,
        bool(body.continue_final_message),
        bool(body.add_special_tokens),
    )


class ChatSerializer:
    """Serializes the choices of one chat completion."""

    def __init__(
        self,
        server: AppState,
        body: ChatCompletionRequest,
        handle: RequestHandle,
        prompt: ChatPrompt,
        params: SamplingParams,
    ):
        self._body = body
        self._handle = handle
        self._server = server
        self._prompts = server.prompts
        self._prompt = prompt
        self._prompt_ids = prompt.token_ids
        self._envelope = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": handle.model_name,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        tools = body.usable_tools
        first_tool_call_only = body.parallel_tool_calls is False
        self._outputs = [
            ParsedOutput(
                self._prompts.output_parser(
                    prompt, tools, params.structured_outputs, bool(body.stream)
                ),
                first_tool_call_only,
                include_reasoning=body.include_reasoning is not False,
            )
            for _ in range(params.n)
        ]
        n = params.n
        as_token_ids = bool(body.return_tokens_as_token_ids)
        self._token_decoders = [  # empty without logprobs
            TokenTextDecoder(server.prompts, as_token_ids) for _ in range(n) if body.logprobs
        ]
        # Fields of non-streaming responses that the parsers do not accumulate, by choice.
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in range(n)]
        self._token_ids: list[list[int]] = [[] for _ in range(n)]
        self._prompt_logprobs: list[Any] | None = None
        options = body.stream_options
        self._include_usage = options is not None and bool(options.include_usage)
        self._continuous_usage = options is not None and options.is_continuous
        # Whether text chunks have no logprobs, token ids or usage, so that `_text_event` can encode
        # them.
        self._is_text_only = not (body.logprobs or body.return_token_ids or self._continuous_usage)
        self._event_templates: dict[
            tuple[int, type[TextDelta] | type[ReasoningDelta]], EventTemplate
        ] = {}

    # ---------------------------------------------------------------- non-streaming

    async def full_response(self) -> Response:
        """Waits for generation to finish, then returns the response."""
        async for outputs in self._handle.stream_outputs():
            for output in outputs:
                self._outputs[output.index].add(output)
                self._logprobs[output.index] += self._token_logprobs(output)
                self._token_ids[output.index] += output.token_ids
                self._prompt_logprobs = self._prompt_logprobs or prompt_logprobs_field(
                    self._prompts,
                    self._prompt_ids,
                    output.prompt_logprobs,
                    self._body.prompt_logprobs,
                )
        self._on_finished()
        return JsonResponse(
            {
                **self._envelope,
                "choices": [self._choice(index) for index in range(len(self._outputs))],
                "usage": openai_usage(self._handle, self._outputs),
                "prompt_logprobs": self._prompt_logprobs,
                "prompt_token_ids": self._prompt_ids if self._body.return_token_ids else None,
            }
        )

    def _choice(self, index: int) -> dict[str, Any]:
        parsed = self._outputs[index]
        has_text = parsed.text or not parsed.calls
        message: dict[str, Any] = {
            "role": "assistant",
            "content": parsed.text if has_text else None,
            "refusal": None,
        }
        if parsed.reasoning:
            message["reasoning_content"] = parsed.reasoning
        if parsed.calls:
            message["tool_calls"] = [_tool_call(call) for call in parsed.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs_field(self._logprobs[index]),
            "finish_reason": parsed.finish_reason,
            "stop_reason": parsed.stop_reason,
            "token_ids": self._token_ids[index] if self._body.return_token_ids else None,
        }

    # ---------------------------------------------------------------- streaming

    def start_events(self) -> bytes:
        """Events with the role of each choice; see `OutputSerializer`."""
        role = {"role": "assistant", "content": ""}
        chunks = [self._chunk([self._delta(index, role)]) for index in range(len(self._outputs))]
        if self._body.return_token_ids:
            chunks[0]["prompt_token_ids"] = self._prompt_ids
        return b"".join(map(sse_event, chunks))

    def delta_events(self, output: StreamOutput) -> bytes:
        """Chunks for an engine output; see `OutputSerializer`."""
        parsed = self._outputs[output.index]
        num_calls = len(parsed.calls)
        parts = parsed.add(output)
        has_ended = parsed.finish_reason is not None
        if self._is_text_only and not has_ended and len(parts) < 2:  # fast path
            if not parts:
                return b""
            if not isinstance(parts[0], ToolCallDelta):
                return self._text_event(output.index, parts[0])
        deltas: list[dict[str, Any]] = []
        for part in parts:
            num_calls += isinstance(part, ToolCallDelta) and part.is_new
            deltas += _deltas(part, num_calls - 1)
        logprobs = self._token_logprobs(output)
        if logprobs and not deltas:
            deltas = [{"content": ""}]
        if not deltas and (has_ended or self._body.return_token_ids):
            deltas = [{}]
        choices: list[dict[str, Any]] = [self._delta(output.index, delta) for delta in deltas]
        if choices and logprobs:
            choices[0]["logprobs"] = self._logprobs_field(logprobs)
        if choices and self._body.return_token_ids:
            choices[0]["token_ids"] = output.token_ids
        if has_ended:
            choices[-1]["finish_reason"] = parsed.finish_reason
            choices[-1]["stop_reason"] = parsed.stop_reason
        return b"".join(sse_event(self._chunk([choice])) for choice in choices)

    def end_events(self) -> bytes:
        """The usage chunk, if requested, and `[DONE]`; see `OutputSerializer`."""
        self._on_finished()
        usage = sse_event(self._chunk([], with_usage=True)) if self._include_usage else b""
        return usage + b"data: [DONE]\n\n"

    def error_events(self, error: ApiError) -> bytes:
        """The error object and `[DONE]`; see `OutputSerializer`."""
        return error_event(PATH, error)

    def _on_finished(self) -> None:
        for output in self._outputs:
            self._server.schedule_validation(self._handle, output)
        if len(self._outputs) == 1:
            self._server.schedule_warmup(
                self._prompts, self._prompt, self._outputs[0], self._handle.lora
            )

    def _text_event(self, index: int, part: TextDelta | ReasoningDelta) -> bytes:
        """Encodes a chunk that contains only text or reasoning."""
        kind = type(part)
        template = self._event_templates.get((index, kind))
        if template is None:
            (delta,) = _deltas(kind(TEXT_PLACEHOLDER), 0)
            template = EventTemplate(sse_event(self._chunk([self._delta(index, delta)])))
            self._event_templates[index, kind] = template
        return template(part.text)

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _chunk(self, choices: list[Any], with_usage: bool = False) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._envelope, "choices": choices}
        if with_usage or self._continuous_usage:
            chunk["usage"] = openai_usage(self._handle, self._outputs)
        return chunk

    def _token_logprobs(self, output: StreamOutput) -> list[dict[str, Any]]:
        if not (self._body.logprobs and self._outputs[output.index].in_content):
            return []
        return self._token_decoders[output.index].logprobs(output, self._body.top_logprobs or 0)

    def _logprobs_field(self, content: list[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": content, "refusal": None} if self._body.logprobs else None


def _deltas(part: ParsedDelta, index: int) -> list[dict[str, Any]]:
    """Converts a parsed delta to OpenAI's format; a call's name precedes its arguments.

    Args:
        part: the parsed delta.
        index: index of the tool call, if `part` is one.
    """
    match part:
        case TextDelta(text):
            return [{"content": text}]
        case ReasoningDelta(text):
            return [{"reasoning_content": text}]
        case ToolCallDelta(name, arguments, call_id, is_new):
            function = {"name": name, "arguments": ""}
            head = {"index": index, "id": call_id, "type": "function", "function": function}
            tail = {"index": index, "function": {"arguments": arguments}}
            return [
                {"tool_calls": [delta]}
                for delta, is_sent in ((head, is_new), (tail, arguments))
                if is_sent
            ]


def _tool_call(call: ToolCallDelta) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
