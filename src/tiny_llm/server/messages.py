"""`POST /v1/messages`: Anthropic's protocol. An answer is a list of blocks, one after the other."""

import json
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from .answer import Answer
from .answer_parser import AnswerParser, Part, Said, Thought, ToolCall
from .bridge import Generation
from .documents import ANTHROPIC_ERRORS, streams
from .errors import ApiError, JsonResponse
from .messages_types import CountBody, MessagesBody
from .prompts import ChatPrompt
from .replies import EventStream, event, whole
from .sampling import make_params
from .seam import Piece
from .server import Server, server_of

PATH = "/v1/messages"
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
# Clients send a thought back with what signed it; there is nothing to check here.
SIGNATURE = "tiny-llm"
PING = event({"type": "ping"}, "ping")

router = APIRouter()


@router.post(
    PATH, tags=["Anthropic"], response_class=JsonResponse, responses=streams(ANTHROPIC_ERRORS)
)
async def create_message(body: MessagesBody, request: Request) -> Response:
    """Answers a conversation, at once or as a stream of events."""
    server = server_of(request)
    server.check_model(body.model)
    body.check_honoured()
    params = make_params(
        server.defaults,
        max_tokens=body.max_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        stop=body.stop_sequences,
        thinking_token_budget=body.thinking_budget,
        structured_outputs=body.form(),
    )
    prompt = await server.prompts.run(_make_prompt, server, body)
    generation = await server.begin([prompt.token_ids], params, prompt.may_think)
    reply = MessageReply(server, body, generation, prompt)
    if not body.stream:
        return await whole(request.receive, generation, reply.whole())
    return EventStream(reply, generation, server.settings.keep_alive, PING)


@router.post(f"{PATH}/count_tokens", tags=["Anthropic"], responses=ANTHROPIC_ERRORS)
async def count_tokens(body: CountBody, request: Request) -> dict[str, int]:
    """How many tokens a conversation has."""
    server = server_of(request)
    server.check_model(body.model)
    body.check_honoured()
    prompt = await server.prompts.run(_make_prompt, server, body)
    return {"input_tokens": len(prompt.token_ids)}


def error_event(error: ApiError) -> bytes:
    """The end of a stream that failed."""
    return event(error.body(PATH), "error")


def _make_prompt(server: Server, body: CountBody) -> ChatPrompt:
    tools = body.openai_tools() if body.uses_tools else None
    variables = {"enable_thinking": body.thinks}
    return server.prompts.chat(body.for_template(), tools, variables, continues=body.continues)


class MessageReply:
    """Writes an answer in Anthropic's form.

    Args:
        server, body, generation, prompt: of the request.
    """

    def __init__(
        self, server: Server, body: MessagesBody, generation: Generation, prompt: ChatPrompt
    ):
        self._generation = generation
        self._next_turns, self._prompts = server.next_turns, server.prompts
        self._prompt = prompt
        choice = body.tool_choice
        one_call = choice is not None and bool(choice.disable_parallel_tool_use)
        parser = AnswerParser(
            prompt.may_think, prompt.in_thought, body.uses_tools, bool(body.stream)
        )
        self._answer = Answer(parser, one_call)
        self._head: dict[str, Any] = {
            "id": f"msg_{uuid.uuid4().hex[:24]}",
            "type": "message",
            "role": "assistant",
            "model": server.settings.model_name,
        }
        if body.asks_diagnosis:  # nothing is kept that an earlier prompt could be compared with
            self._head["diagnostics"] = {"cache_miss_reason": {"type": "unavailable"}}
        self._omits_thoughts = body.omits_thoughts
        self._blocks: list[dict[str, Any]] = []

    async def whole(self) -> Response:
        """The answer when it is finished."""
        async for pieces in self._generation.news():
            for _, piece in pieces:
                for part in self._answer.take(piece):
                    self._add(part)
        self._finish()
        return JsonResponse(
            {**self._head, "content": self._blocks, **self._ending(), "usage": self._usage()}
        )

    def begin(self) -> bytes:
        """See `Reply`."""
        message: dict[str, Any] = {
            **self._head,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }
        return _event({"type": "message_start", "message": message})

    def take(self, _: int, piece: Piece) -> bytes:
        """See `Reply`."""
        events = []
        for part in self._answer.take(piece):
            is_new = self._add(part)
            if isinstance(part, Thought) and self._omits_thoughts and not is_new:
                continue
            if is_new and len(self._blocks) > 1:
                events.append(self._end_block(len(self._blocks) - 2))
            events.append(self._more(part, is_new))
        return b"".join(events)

    def end(self) -> bytes:
        """See `Reply`."""
        filled = self._finish()
        last = self._end_block(len(self._blocks) - 1)
        ending = {"type": "message_delta", "delta": self._ending(), "usage": self._usage()}
        return filled + last + _event(ending) + _event({"type": "message_stop"})

    def fail(self, error: ApiError) -> bytes:
        """See `Reply`."""
        return error_event(error)

    def _finish(self) -> bytes:
        """Ends the answer. One that says nothing has an empty text: many clients read a block."""
        self._next_turns.expect(self._prompts, self._prompt, self._answer)
        if self._blocks:
            return b""
        nothing = Said("")
        self._add(nothing)
        return self._more(nothing, is_new=True)

    def _add(self, part: Part) -> bool:
        """Adds a part to the last block, or begins a block; returns whether it did that."""
        last = self._blocks[-1]["type"] if self._blocks else None
        if isinstance(part, Thought) and self._omits_thoughts:
            part = Thought("")
        match part:
            case Said(text) if last == "text":
                self._blocks[-1]["text"] += text
                return False
            case Thought(text) if last == "thinking":
                self._blocks[-1]["thinking"] += text
                return False
            case Said(text):
                self._blocks.append({"type": "text", "text": text})
            case Thought(text):
                block = {"type": "thinking", "thinking": text, "signature": SIGNATURE}
                self._blocks.append(block)
            case ToolCall(is_new=False):
                return False
            case ToolCall(name, arguments, call_id):
                head = {"type": "tool_use", "id": f"toolu_{call_id[5:]}", "name": name}
                self._blocks.append({**head, "input": _object(arguments)})
        return True

    def _more(self, part: Part, is_new: bool) -> bytes:
        """Events for a part: the beginning of its block if it is new, and what it adds."""
        index = len(self._blocks) - 1
        delta: dict[str, Any]
        match part:
            case Said(text):
                empty: dict[str, Any] = {"type": "text", "text": ""}
                delta = {"type": "text_delta", "text": text}
            case Thought(text):
                empty = {"type": "thinking", "thinking": "", "signature": ""}
                delta = {"type": "thinking_delta", "thinking": text}
            case ToolCall(arguments=more):
                empty = {**self._blocks[-1], "input": {}}
                if is_new and more:  # a whole call
                    more = json.dumps(self._blocks[-1]["input"], ensure_ascii=False)
                delta = {"type": "input_json_delta", "partial_json": more}
        grown = _event({"type": "content_block_delta", "index": index, "delta": delta})
        if not is_new:
            return grown
        begin = _event({"type": "content_block_start", "index": index, "content_block": empty})
        is_omitted = isinstance(part, Thought) and self._omits_thoughts
        return begin if is_omitted else begin + grown

    def _end_block(self, index: int) -> bytes:
        end = _event({"type": "content_block_stop", "index": index})
        if self._blocks[index]["type"] != "thinking":
            return end
        delta = {"type": "signature_delta", "signature": SIGNATURE}
        return _event({"type": "content_block_delta", "index": index, "delta": delta}) + end

    def _ending(self) -> dict[str, Any]:
        stop = self._answer.stop_reason
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        reason = STOP_REASONS.get(self._answer.finish_reason or "")
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self) -> dict[str, Any]:
        cached = self._generation.cached_tokens
        return {
            "input_tokens": self._generation.prompt_tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": self._answer.tokens,
            "output_tokens_details": {"thinking_tokens": self._answer.thinking_tokens},
        }


def _event(data: dict[str, Any]) -> bytes:
    return event(data, data["type"])


def _object(arguments: str) -> dict[str, Any]:
    """A call's arguments, which Anthropic's protocol has as an object."""
    if not arguments:  # they are still to come
        return {}
    try:
        found = json.loads(arguments)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"arguments": arguments}
