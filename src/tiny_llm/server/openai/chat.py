"""`POST /v1/chat/completions`: handler and response serialization."""

import time
import uuid
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...engine.outputs.output_parser import ParsedDelta, ReasoningDelta, TextDelta
from ...engine.scheduling.request import StreamOutput
from ...engine.tool_calls.format import ToolCallDelta
from ..engine_client.request_stream import RequestStream
from ..http.errors import ERROR_RESPONSES, ApiError, streaming_route
from ..models.requests import Generation, ParsedOutput, generate, use_model
from ..protocol.logprobs import ContentLogprobs, prompt_logprobs_field
from ..protocol.prompts import ChatPrompt, PromptRenderer
from ..protocol.streaming import (
    KEEP_ALIVE_COMMENT,
    TEXT_PLACEHOLDER,
    EventTemplate,
    error_event,
    sse_event,
)
from .chat_schema import ChatCompletionRequest, SamplingFields, StreamOptions

PATH = "/v1/chat/completions"
SYSTEM_FINGERPRINT = f"tiny-llm-{version('tiny-llm')}"
DONE = b"data: [DONE]\n\n"

router = APIRouter()


@streaming_route(router, PATH, "OpenAI", ERROR_RESPONSES)
async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
    """Creates a chat completion. With `stream`, sends server-sent events."""
    model = await use_model(request, body, "generate", bool(body.stream))
    prompts = model.prompts
    body.chat_template_kwargs = prompts.used_template_kwargs(body.chat_template_kwargs)
    prompt = await prompts.run(_render_prompt, prompts, body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    limit = body.max_completion_tokens or body.max_tokens
    params = body.sampling_params(
        model.defaults, limit, logprobs, body.constraint(), body.prompt_logprobs
    )
    return await generate(request, model, body, prompt, params, partial(ChatSerializer, body))


def _render_prompt(prompts: PromptRenderer, body: ChatCompletionRequest) -> ChatPrompt:
    messages = [message.to_template(number) for number, message in enumerate(body.messages)]
    return prompts.encode_chat(
        messages,
        body.usable_tools,
        body.template_variables(),
        body.add_generation_prompt is not False,
        bool(body.continue_final_message),
        bool(body.add_special_tokens),
    )


class ChoicesSerializer:
    """Serialization shared with `completions.py`: chunks, usage, token ids."""

    def __init__(
        self,
        path: str,
        id_prefix: str,
        object_type: str,
        body: SamplingFields,
        stream: RequestStream,
        outputs: Sequence[ParsedOutput],
        has_logprobs: bool,
    ):
        self._path = path
        self._stream = stream
        self._outputs = outputs
        # Output token ids by choice, collected only for full responses.
        self._token_ids: list[list[int]] = [[] for _ in outputs]
        self._return_token_ids = bool(body.return_token_ids)
        self._envelope = {
            "id": f"{id_prefix}-{uuid.uuid4().hex}",
            "object": object_type,
            "created": int(time.time()),
            "model": stream.model_name,
            "system_fingerprint": SYSTEM_FINGERPRINT,
        }
        options = body.stream_options or StreamOptions()
        self._include_usage = bool(options.include_usage)
        self._continuous_usage = self._include_usage and bool(options.continuous_usage_stats)
        # Whether chunks before the last contain only text, so that `_text_event` can encode them.
        self._is_text_only = not (has_logprobs or self._return_token_ids or self._continuous_usage)
        self._event_templates: dict[Hashable, EventTemplate] = {}

    def end_events(self) -> bytes:
        return (self._chunk([], with_usage=True) if self._include_usage else b"") + DONE

    def error_events(self, error: ApiError) -> bytes:
        return error_event(self._path, error.body(self._path))

    def keep_alive_event(self) -> bytes:
        return KEEP_ALIVE_COMMENT

    def _chunk(self, choices: list[Any], with_usage: bool = False, **fields: Any) -> bytes:
        if with_usage or self._continuous_usage:
            fields["usage"] = self._usage()
        return sse_event({**self._envelope, "choices": choices, **fields})

    def _text_event(self, key: Hashable, text: str, choice: Callable[[str], Any]) -> bytes:
        """Encodes a chunk in which only the text varies; one template per `key`."""
        template = self._event_templates.get(key)
        if template is None:
            template = EventTemplate(self._chunk([choice(TEXT_PLACEHOLDER)]))
            self._event_templates[key] = template
        return template(text)

    def _usage(self) -> dict[str, Any]:
        prompt_tokens = self._stream.prompt_tokens
        tokens = sum(output.tokens for output in self._outputs)
        reasoning_tokens = sum(output.reasoning_tokens for output in self._outputs)
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": prompt_tokens + tokens,
            "prompt_tokens_details": {"cached_tokens": self._stream.cached_tokens},
            "completion_tokens_details": {"reasoning_tokens": reasoning_tokens},
        }


class ChatSerializer(ChoicesSerializer):
    def __init__(self, body: ChatCompletionRequest, generation: Generation):
        outputs = generation.outputs
        for output in outputs:
            output.include_reasoning = body.include_reasoning is not False
        object_type = "chat.completion.chunk" if body.stream else "chat.completion"
        has_logprobs = bool(body.logprobs)
        super().__init__(
            PATH, "chatcmpl", object_type, body, generation.stream, outputs, has_logprobs
        )
        self._body = body
        self._prompts = prompts = generation.model.prompts
        self._prompt = generation.prompt
        as_token_ids, top = bool(body.return_tokens_as_token_ids), body.top_logprobs or 0
        # One per choice; none if logprobs are not requested.
        self._content_logprobs = [
            ContentLogprobs(prompts, output.parser, top, as_token_ids)
            for output in outputs
            if body.logprobs
        ]
        # Logprobs by choice, collected only for full responses.
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in outputs]
        self._prompt_logprobs: list[Any] | None = None

    def add(self, output: StreamOutput) -> None:
        self._outputs[output.index].add(output)
        self._logprobs[output.index] += self._token_logprobs(output)
        self._token_ids[output.index] += output.token_ids
        self._prompt_logprobs = self._prompt_logprobs or prompt_logprobs_field(
            self._prompts,
            self._prompt.token_ids,
            output.prompt_logprobs,
            self._body.prompt_logprobs,
        )

    def full_response(self) -> dict[str, Any]:
        return {
            **self._envelope,
            "choices": [self._choice(index) for index in range(len(self._outputs))],
            "usage": self._usage(),
            "prompt_logprobs": self._prompt_logprobs,
            "prompt_token_ids": self._prompt.token_ids if self._return_token_ids else None,
        }

    def _choice(self, index: int) -> dict[str, Any]:
        parsed = self._outputs[index]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": parsed.text if parsed.text or not parsed.calls else None,
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
            "token_ids": self._token_ids[index] if self._return_token_ids else None,
        }

    def start_events(self) -> bytes:
        role = {"role": "assistant", "content": ""}
        chunks = []
        for index in range(len(self._outputs)):
            fields: dict[str, Any] = {}
            if index == 0 and self._return_token_ids:
                fields["prompt_token_ids"] = self._prompt.token_ids
            chunks.append(self._chunk([self._delta(index, role)], **fields))
        return b"".join(chunks)

    def delta_events(self, output: StreamOutput) -> bytes:
        parsed = self._outputs[output.index]
        num_calls = len(parsed.calls)
        parts = parsed.add(output)
        has_ended = parsed.finish_reason is not None
        if self._is_text_only and not has_ended and len(parts) < 2:  # fast path
            if not parts:
                return b""
            if not isinstance(parts[0], ToolCallDelta):
                return self._text_delta_event(output.index, parts[0])
        deltas: list[dict[str, Any]] = []
        for part in parts:
            num_calls += isinstance(part, ToolCallDelta) and part.is_new
            deltas += _deltas(part, num_calls - 1)
        logprobs = self._token_logprobs(output)
        if logprobs and not deltas:
            deltas = [{"content": ""}]
        if not deltas and (has_ended or self._return_token_ids):
            deltas = [{}]
        choices: list[dict[str, Any]] = [self._delta(output.index, delta) for delta in deltas]
        if choices and logprobs:
            choices[0]["logprobs"] = self._logprobs_field(logprobs)
        if choices and self._return_token_ids:
            choices[0]["token_ids"] = output.token_ids
        if has_ended:
            choices[-1]["finish_reason"] = parsed.finish_reason
            choices[-1]["stop_reason"] = parsed.stop_reason
        return b"".join(self._chunk([choice]) for choice in choices)

    def _text_delta_event(self, index: int, part: TextDelta | ReasoningDelta) -> bytes:
        kind = type(part)
        return self._text_event(
            (index, kind), part.text, lambda text: self._delta(index, *_deltas(kind(text), 0))
        )

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _token_logprobs(self, output: StreamOutput) -> list[dict[str, Any]]:
        return self._content_logprobs[output.index].add(output) if self._body.logprobs else []

    def _logprobs_field(self, content: list[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": content, "refusal": None} if self._body.logprobs else None


def _deltas(part: ParsedDelta, index: int) -> list[dict[str, Any]]:
    """Converts a parsed delta to OpenAI's format; `index` numbers tool calls."""
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
