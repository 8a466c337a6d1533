"""`POST /v1/responses`: handlers and response serialization."""

import time
import uuid
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from ...engine.outputs.output_parser import ParsedDelta, ReasoningDelta, TextDelta
from ...engine.scheduling.request import StreamOutput
from ...engine.tool_calls.format import ToolCallDelta
from ..http.errors import ERROR_RESPONSES, ApiError, streaming_route
from ..models.requests import Generation, generate, get_models, max_body_bytes, use_model
from ..models.served_model import ServedModel
from ..protocol.logprobs import ContentLogprobs
from ..protocol.prompts import ChatPrompt
from ..protocol.request_fields import encode_reasoning, make_sampling_params
from ..protocol.streaming import RESPONSES_PATH as PATH
from ..protocol.streaming import sse_event
from .response_store import Conversation, ResponseStore
from .responses_schema import (
    ENCRYPTED_REASONING,
    ResponsesRequest,
    TextFormat,
    TextOptions,
    to_chat_messages,
)

Event = dict[str, Any]

# By item type: prefix of its id, type of its content part, prefix of its text events' names.
ITEM_TYPES = {
    "message": ("msg", "output_text", "response.output_text"),
    "reasoning": ("rs", "reasoning_text", "response.reasoning_text"),
}
ARGUMENTS = "response.function_call_arguments"  # prefix of the names of tool-call events


class OutputItems:
    """Output items; `encrypt_reasoning` adds `encrypted_content` to reasoning."""

    def __init__(self, encrypt_reasoning: bool = False) -> None:
        self._encrypt_reasoning = encrypt_reasoning
        self.items: list[dict[str, Any]] = []
        self._is_open = False

    def add(self, part: ParsedDelta, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        match part:
            case TextDelta(text):
                return self._grow("message", text, logprobs)
            case ReasoningDelta(text):
                return self._grow("reasoning", text)
            case ToolCallDelta(arguments=arguments):
                events = self._open_call(part) if part.is_new else []
                if arguments:
                    self.items[-1]["arguments"] += arguments
                    location = self._location()
                    events.append({"type": f"{ARGUMENTS}.delta", **location, "delta": arguments})
                return events

    def finish(self, is_incomplete: bool) -> list[Event]:
        """Closes the last item, which is truncated if `is_incomplete`.

        An empty response gets an empty message, because many clients read the first item.
        """
        events = [] if self.items else self._open("message")
        return [*events, *self._close("incomplete" if is_incomplete else "completed")]

    @property
    def ends_with_call(self) -> bool:
        return bool(self.items) and self.items[-1]["type"] == "function_call"

    def _grow(self, kind: str, text: str, logprobs: Sequence[dict[str, Any]] = ()) -> list[Event]:
        events: list[Event] = []
        if not (self._is_open and self.items[-1]["type"] == kind):
            events += self._close("completed") + self._open(kind)
        part = self.items[-1]["content"][0]
        part["text"] += text
        location = self._location(content_index=0)
        delta = {"type": f"{ITEM_TYPES[kind][2]}.delta", **location, "delta": text}
        if kind == "message":
            part["logprobs"] += logprobs
            delta["logprobs"] = list(logprobs)
        return [*events, delta]

    def _open(self, kind: str) -> list[Event]:
        prefix, part_type, _ = ITEM_TYPES[kind]
        is_message = kind == "message"
        extra: dict[str, Any] = {"role": "assistant"} if is_message else {"summary": []}
        item = {**_new_item(kind, prefix), "content": [], **extra}
        part: dict[str, Any] = {"type": part_type, "text": ""}
        if is_message:
            part |= {"annotations": [], "logprobs": []}
        events = [self._added(item)]
        location = self._location(content_index=0)
        part_added = {"type": "response.content_part.added", **location, "part": deepcopy(part)}
        self.items[-1] = {**item, "content": [part]}
        self._is_open = True
        return [*events, part_added]

    def _close(self, status: str) -> list[Event]:
        if not self._is_open:
            return []
        self._is_open = False
        item = self.items[-1]
        item["status"] = status
        if item["type"] == "function_call":
            call = {name: item[name] for name in ("arguments", "name")}
            return [{"type": f"{ARGUMENTS}.done", **self._location(), **call}, self._done()]
        part = item["content"][0]
        if item["type"] == "reasoning" and self._encrypt_reasoning:
            item["encrypted_content"] = encode_reasoning(part["text"])
        location = self._location(content_index=0)
        done = {"type": f"{ITEM_TYPES[item['type']][2]}.done", **location, "text": part["text"]}
        if item["type"] == "message":
            done["logprobs"] = part["logprobs"]
        part_done = {"type": "response.content_part.done", **location, "part": {**part}}
        return [done, part_done, self._done()]

    def _open_call(self, call: ToolCallDelta) -> list[Event]:
        events = self._close("completed")
        item = {**_new_item("function_call", "fc"), "call_id": call.id, "name": call.name}
        events.append(self._added({**item, "arguments": ""}))
        self._is_open = True
        return events

    def _added(self, item: dict[str, Any]) -> Event:
        self.items.append(item)
        index = len(self.items) - 1
        return {"type": "response.output_item.added", "output_index": index, "item": {**item}}

    def _done(self) -> Event:
        index = len(self.items) - 1
        item = {**self.items[-1]}
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    def _location(self, **content: int) -> dict[str, Any]:
        return {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1, **content}


def _new_item(kind: str, prefix: str) -> dict[str, Any]:
    return {"type": kind, "id": f"{prefix}_{uuid.uuid4().hex}", "status": "in_progress"}


router = APIRouter()


@streaming_route(router, PATH, "OpenAI", ERROR_RESPONSES)
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    """Creates a response. With `stream`, sends server-sent events."""
    model = await use_model(request, body, "generate", bool(body.stream))
    params = make_sampling_params(
        model.defaults,
        **body.shared_params(body.max_output_tokens),
        logprobs=body.logprobs,
        structured_outputs=body.constraint(),
    )
    prompt, conversation = await _render_prompt(request, model, body)
    store: ResponseStore = request.app.state.response_store
    make_serializer = partial(ResponseSerializer, body, store, conversation)
    return await generate(request, model, body, prompt, params, make_serializer)


@router.post(f"{PATH}/input_tokens", tags=["OpenAI"], responses=ERROR_RESPONSES)
async def count_input_tokens(body: ResponsesRequest, request: Request) -> dict[str, Any]:
    """Counts the input tokens of a response without creating it."""
    model = await use_model(request, body, "generate")
    prompt, _ = await _render_prompt(request, model, body)
    return {"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)}


async def _render_prompt(
    request: Request, model: ServedModel, body: ResponsesRequest
) -> tuple[ChatPrompt, Conversation]:
    store: ResponseStore = request.app.state.response_store
    max_bytes = max_body_bytes(get_models(request))
    conversation = store.resolve(body.input, body.previous_response_id, max_bytes)
    prompts = model.prompts

    def render() -> ChatPrompt:
        items, num_stored = conversation.items(), len(conversation.stored)
        messages = to_chat_messages(items, body.instructions, num_stored)
        return prompts.encode_chat(messages, body.usable_tools, body.template_variables())

    return await prompts.run(render), conversation


class ResponseSerializer:
    def __init__(
        self,
        body: ResponsesRequest,
        store: ResponseStore,
        conversation: Conversation,
        generation: Generation,
    ):
        self._body = body
        self._store = store
        self._is_stored = store.is_enabled and body.store is not False
        self._conversation = conversation
        self._stream = generation.stream
        model, [self._output] = generation.model, generation.outputs
        given = {"temperature": body.temperature, "top_p": body.top_p}
        self._params = {
            name: model.defaults.get(name, 1.0) if value is None else value
            for name, value in given.items()
        }
        parser = self._output.parser
        self._content_logprobs = ContentLogprobs(model.prompts, parser, body.logprobs or 0)
        self._logprobs: list[dict[str, Any]] = []  # entries for tokens whose text is unsent
        self._items = OutputItems(ENCRYPTED_REASONING in (body.include or ()))
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = time.time()
        self._sequence_number = -1

    def start_events(self) -> bytes:
        created = self._lifecycle_event("response.created", "in_progress")
        return created + self.keep_alive_event()

    def keep_alive_event(self) -> bytes:
        """`response.in_progress`, repeated while the response waits."""
        return self._lifecycle_event("response.in_progress", "in_progress")

    def delta_events(self, output: StreamOutput) -> bytes:
        return b"".join(map(self._event, self.add(output)))

    def end_events(self) -> bytes:
        last = b"".join(map(self._event, self._finish()))
        return last + self._lifecycle_event(f"response.{self._status}", self._status)

    def full_response(self) -> dict[str, Any]:
        self._finish()
        return self._response(self._status)

    def add(self, output: StreamOutput) -> list[Event]:
        """Appends an output; its logprobs are sent with the next text delta."""
        parts = self._output.add(output)
        self._logprobs += self._content_logprobs.add(output)
        events = []
        for part in parts:
            logprobs = []
            if not isinstance(part, ReasoningDelta):  # reasoning has no logprobs
                logprobs, self._logprobs = self._logprobs, []
            events += self._items.add(part, logprobs)
        return events

    def _finish(self) -> list[Event]:
        is_cut_call = self._output.parser.has_incomplete_call and self._items.ends_with_call
        events = self._items.finish(self._is_incomplete or is_cut_call)
        if self._is_stored:
            self._store.add(self._id, self._conversation, self._items.items)
        return events

    def error_events(self, error: ApiError) -> bytes:
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": error.message}
        return self._event({"type": "response.failed", "response": response})

    @property
    def _is_incomplete(self) -> bool:
        return self._output.finish_reason == "length"

    @property
    def _status(self) -> str:
        return "incomplete" if self._is_incomplete else "completed"

    def _lifecycle_event(self, name: str, status: str) -> bytes:
        return self._event({"type": name, "response": self._response(status)})

    def _event(self, data: Event) -> bytes:
        self._sequence_number += 1
        return sse_event({**data, "sequence_number": self._sequence_number}, data["type"])

    def _response(self, status: str) -> dict[str, Any]:
        body, is_done = self._body, status in ("completed", "incomplete")
        return {
            "id": self._id,
            "object": "response",
            "created_at": int(self._created),
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if self._is_incomplete else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._stream.model_name,
            "output": self._items.items if is_done else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": body.effort, "summary": None},
            "service_tier": "default",
            "store": self._is_stored,
            **self._params,
            "text": self._text_options(),
            "tool_choice": body.tool_choice or "auto",
            "tools": [
                {
                    "type": "function",
                    "description": None,
                    "parameters": None,
                    "strict": False,
                    **tool["function"],
                }
                for tool in body.function_tools
            ],
            "top_logprobs": body.top_logprobs or 0,
            "presence_penalty": body.presence_penalty or 0.0,
            "frequency_penalty": body.frequency_penalty or 0.0,
            "truncation": "disabled",
            "usage": self._usage() if is_done else None,
            "user": body.user,
            "metadata": body.metadata or {},
        }

    def _text_options(self) -> dict[str, Any]:
        given = self._body.text or TextOptions()
        chosen = given.format or TextFormat(type="text")
        fields: dict[str, Any] = {"type": chosen.type}
        if chosen.type == "json_schema":
            fields = chosen.model_dump(by_alias=True)
            fields |= {"name": chosen.name or "", "strict": bool(chosen.strict)}
        return {"format": fields, "verbosity": given.verbosity or "medium"}

    def _usage(self) -> dict[str, Any]:
        prompt_tokens, output = self._stream.prompt_tokens, self._output
        return {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {"cached_tokens": self._stream.cached_tokens},
            "output_tokens": output.tokens,
            "output_tokens_details": {"reasoning_tokens": output.reasoning_tokens},
            "total_tokens": prompt_tokens + output.tokens,
        }
