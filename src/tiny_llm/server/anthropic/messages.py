"""`POST /v1/messages`: handlers and response serialization."""

import json
import re
import uuid
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...engine.outputs.output_parser import ParsedDelta, ReasoningDelta, TextDelta
from ...engine.scheduling.request import StreamOutput
from ...engine.tool_calls.format import ToolCallDelta
from ..http.errors import ANTHROPIC_ERROR_RESPONSES, ApiError, streaming_route
from ..models.requests import Generation, generate, use_model
from ..protocol.prompts import ChatPrompt, PromptRenderer
from ..protocol.request_fields import encode_reasoning, make_sampling_params
from ..protocol.streaming import error_event, sse_event
from .messages_schema import CountTokensRequest, MessagesRequest

PATH = "/v1/messages"
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
SIGNATURE = "tiny-llm"  # of thinking blocks with text; clients send it back, and it is not verified
PING = sse_event({"type": "ping"}, "ping")

router = APIRouter()


@streaming_route(router, PATH, "Anthropic", ANTHROPIC_ERROR_RESPONSES)
async def create_message(body: MessagesRequest, request: Request) -> Response:
    """Creates a message. With `stream`, sends server-sent events."""
    model = await use_model(request, body, "generate", bool(body.stream))
    params = make_sampling_params(
        model.defaults,
        max_tokens=body.max_tokens or 1,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        thinking_token_budget=body.thinking_budget,
        structured_outputs=body.constraint(),
    )
    prompt = await model.prompts.run(_render_prompt, model.prompts, body)
    return await generate(request, model, body, prompt, params, partial(MessageSerializer, body))


@router.post(f"{PATH}/count_tokens", tags=["Anthropic"], responses=ANTHROPIC_ERROR_RESPONSES)
async def count_tokens(body: CountTokensRequest, request: Request) -> dict[str, int]:
    """Counts the input tokens of a message without creating it."""
    model = await use_model(request, body, "generate")
    prompt = await model.prompts.run(_render_prompt, model.prompts, body)
    return {"input_tokens": len(prompt.token_ids)}


def _render_prompt(prompts: PromptRenderer, body: CountTokensRequest) -> ChatPrompt:
    return prompts.encode_chat(
        body.to_template_messages(),
        body.prompt_tools,
        body.template_variables(),
        continue_final_message=body.continue_final_message,
    )


class MessageSerializer:
    def __init__(self, body: MessagesRequest, generation: Generation):
        self._stream = generation.stream
        [self._output] = generation.outputs
        self._only_prefill = body.max_tokens == 0
        if self._only_prefill:
            self._output.finish_reason = "length"
        self._envelope: dict[str, Any] = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": self._stream.model_name,
        }
        # The reason for a cache miss is unknown, because earlier prompts are not stored.
        if body.diagnostics is not None and body.diagnostics.previous_message_id is not None:
            self._envelope["diagnostics"] = {"cache_miss_reason": {"type": "unavailable"}}
        thinking = body.thinking
        self._omit_reasoning = thinking is not None and thinking.display == "omitted"
        self._blocks: list[dict[str, Any]] = []
        self._is_first_delta = False  # whether the next delta starts a tool call's arguments

    def add(self, output: StreamOutput) -> None:
        for part in self._parse(output):
            self._add(part)

    def _parse(self, output: StreamOutput) -> list[ParsedDelta]:
        return [] if self._only_prefill else self._output.add(output)

    def full_response(self) -> dict[str, Any]:
        self._finish()
        stop = self._stop_fields()
        return {**self._envelope, "content": self._blocks, **stop, "usage": self._usage()}

    def start_events(self) -> bytes:
        message: dict[str, Any] = {
            **self._envelope,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        return _event({"type": "message_start", "message": message})

    def delta_events(self, output: StreamOutput) -> bytes:
        events = []
        for part in self._parse(output):
            is_new = self._add(part)
            if isinstance(part, ReasoningDelta) and self._omit_reasoning and not is_new:
                continue
            if is_new and len(self._blocks) > 1:
                events.append(self._block_stop_events(len(self._blocks) - 2))
            events.append(self._delta_events(part, is_new))
        return b"".join(events)

    def end_events(self) -> bytes:
        empty_block = self._finish()
        block_stop = self._block_stop_events(len(self._blocks) - 1) if self._blocks else b""
        delta = {"type": "message_delta", "delta": self._stop_fields(), "usage": self._usage()}
        return empty_block + block_stop + _event(delta) + _event({"type": "message_stop"})

    def error_events(self, error: ApiError) -> bytes:
        return error_event(PATH, error.body(PATH))

    def keep_alive_event(self) -> bytes:
        return PING

    def _finish(self) -> bytes:
        """Ends the output; if there is no block, adds one and returns its events.

        Many clients read the first block without checking whether it exists. After `max_tokens: 0`,
        which only fills the prefix cache, there is none.
        """
        for block in self._blocks:
            if block["type"] == "thinking":
                block["signature"] = self._signature
        if self._blocks or self._only_prefill:
            return b""
        empty = TextDelta("")
        self._add(empty)
        return self._delta_events(empty, is_new=True)

    @property
    def _signature(self) -> str:
        """Signature of the thinking block, which contains the text if the block does not."""
        return encode_reasoning(self._output.reasoning) if self._omit_reasoning else SIGNATURE

    def _add(self, part: ParsedDelta) -> bool:
        """Appends a delta to the last block; returns whether it opened a new one."""
        last = self._blocks[-1]["type"] if self._blocks else None
        if isinstance(part, ReasoningDelta) and self._omit_reasoning:
            part = ReasoningDelta("")
        match part:
            case TextDelta(text) if last == "text":
                self._blocks[-1]["text"] += text
                return False
            case ReasoningDelta(text) if last == "thinking":
                self._blocks[-1]["thinking"] += text
                return False
            case TextDelta(text):
                self._blocks.append({"type": "text", "text": text})
            case ReasoningDelta(text):
                self._blocks.append({"type": "thinking", "thinking": text, "signature": ""})
            case ToolCallDelta(is_new=False):
                return False
            case ToolCallDelta(name, arguments, call_id):
                # Other ids keep the format that the chat template requires.
                tool_use_id = re.sub("^call_", "toolu_", call_id)
                head = {"type": "tool_use", "id": tool_use_id, "name": name}
                self._blocks.append({**head, "input": _parse_arguments(arguments)})
        return True

    def _delta_events(self, part: ParsedDelta, is_new: bool) -> bytes:
        index = len(self._blocks) - 1
        delta: dict[str, Any]
        match part:
            case TextDelta(text):
                empty: dict[str, Any] = {"type": "text", "text": ""}
                delta = {"type": "text_delta", "text": text}
            case ReasoningDelta(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                delta = {"type": "thinking_delta", "thinking": text}
            case ToolCallDelta(arguments=arguments):
                empty = {**self._blocks[-1], "input": {}}
                if self._is_first_delta and arguments and arguments[0] != "{":  # not a JSON object
                    arguments = json.dumps(_parse_arguments(arguments), ensure_ascii=False)
                self._is_first_delta = is_new
                delta = {"type": "input_json_delta", "partial_json": arguments}
        block_delta = _event({"type": "content_block_delta", "index": index, "delta": delta})
        if not is_new:
            return block_delta
        block_start = _event(
            {"type": "content_block_start", "index": index, "content_block": empty}
        )
        is_omitted = isinstance(part, ReasoningDelta) and self._omit_reasoning
        return block_start if is_omitted else block_start + block_delta

    def _block_stop_events(self, index: int) -> bytes:
        block_stop = _event({"type": "content_block_stop", "index": index})
        if self._blocks[index]["type"] != "thinking":
            return block_stop
        delta = {"type": "signature_delta", "signature": self._signature}
        return _event({"type": "content_block_delta", "index": index, "delta": delta}) + block_stop

    def _stop_fields(self) -> dict[str, Any]:
        stop = self._output.stop_reason
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        reason = STOP_REASONS.get(self._output.finish_reason or "")
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self) -> dict[str, Any]:
        cached = self._stream.cached_tokens
        return {
            "input_tokens": self._stream.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._output.tokens,
            "output_tokens_details": {"thinking_tokens": self._output.reasoning_tokens},
        }


def _event(data: dict[str, Any]) -> bytes:
    return sse_event(data, data["type"])


def _parse_arguments(arguments: str) -> dict[str, Any]:
    """Parses arguments; text other than an object becomes {"arguments": text}."""
    if not arguments:  # not generated yet
        return {}
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        parsed = None
    return parsed if isinstance(parsed, dict) else {"arguments": arguments}
