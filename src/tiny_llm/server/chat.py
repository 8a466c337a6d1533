"""`POST /v1/chat/completions`: a conversation in, the assistant's next turn out."""

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from .answer import Answer, TokenTexts
from .answer_parser import AnswerParser, Part, Said, Thought, ToolCall
from .bridge import Generation
from .chat_types import ChatBody
from .documents import ERRORS, streams
from .errors import ApiError, JsonResponse
from .prompts import ChatPrompt
from .replies import MARK, EventStream, TextEvent, event, whole
from .seam import Piece
from .server import Server, server_of
from .text_logprobs import prompt_logprobs_field
from .usage import FINGERPRINT, usage_of

PATH = "/v1/chat/completions"

router = APIRouter()


@router.post(PATH, tags=["OpenAI"], response_class=JsonResponse, responses=streams(ERRORS))
async def create_chat_completion(body: ChatBody, request: Request) -> Response:
    """Answers a conversation, at once or as a stream of events."""
    server = server_of(request)
    server.check_model(body.model)
    body.check_honoured()
    prompts = server.prompts
    prompt = await prompts.run(_make_prompt, server, body)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    limit = body.max_completion_tokens or body.max_tokens
    params = body.sampling_params(
        server.defaults, limit, logprobs, body.form(), body.prompt_logprobs
    )
    generation = await server.begin([prompt.token_ids], params, prompt.may_think)
    reply = ChatReply(server, body, generation, prompt, params.n)
    if not body.stream:
        return await whole(request.receive, generation, reply.whole())
    return EventStream(reply, generation, server.settings.keep_alive)


def error_event(error: ApiError) -> bytes:
    """The end of a stream that failed."""
    return event(error.body(PATH)) + b"data: [DONE]\n\n"


def _make_prompt(server: Server, body: ChatBody) -> ChatPrompt:
    messages = [message.for_template(number) for number, message in enumerate(body.messages)]
    return server.prompts.chat(
        messages,
        body.usable_tools or None,
        body.template_variables(),
        body.add_generation_prompt is not False,
        bool(body.continue_final_message),
        bool(body.add_special_tokens),
    )


class ChatReply:
    """Writes the answers of one chat in OpenAI's form.

    Args:
        server, body, generation, prompt: of the request.
        n: how many answers it has.
    """

    def __init__(
        self, server: Server, body: ChatBody, generation: Generation, prompt: ChatPrompt, n: int
    ):
        self._body = body
        self._generation = generation
        self._next_turns, self._prompts = server.next_turns, server.prompts
        self._prompt = prompt
        self._prompt_ids = prompt.token_ids
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if body.stream else "chat.completion",
            "created": int(time.time()),
            "model": server.settings.model_name,
            "system_fingerprint": FINGERPRINT,
        }
        one_call = body.parallel_tool_calls is False
        self._answers = [
            Answer(
                AnswerParser(
                    prompt.may_think, prompt.in_thought, body.uses_tools, bool(body.stream)
                ),
                one_call,
                tells_thoughts=body.include_reasoning is not False,
            )
            for _ in range(n)
        ]
        as_ids = bool(body.return_tokens_as_token_ids)
        self._texts = [TokenTexts(server.prompts, as_ids) for _ in range(n)]
        # Of answers that are told at once, what parsers do not keep.
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in range(n)]
        self._token_ids: list[list[int]] = [[] for _ in range(n)]
        self._prompt_logprobs: list[Any] | None = None
        options = body.stream_options
        self._tells_usage = options is not None and bool(options.include_usage)
        self._is_continuous = options is not None and options.is_continuous
        # Whether a chunk with text has nothing but text in it; such chunks are encoded once.
        self._is_plain = not (body.logprobs or body.return_token_ids or self._is_continuous)
        self._text_events: dict[tuple[int, type[Said] | type[Thought]], TextEvent] = {}

    # ---------------------------------------------------------------- at once

    async def whole(self) -> Response:
        """The answer when it is finished."""
        async for pieces in self._generation.news():
            for _, piece in pieces:
                self._answers[piece.index].take(piece)
                self._logprobs[piece.index] += self._token_logprobs(piece)
                self._token_ids[piece.index] += piece.token_ids
                self._prompt_logprobs = self._prompt_logprobs or prompt_logprobs_field(
                    self._prompts,
                    self._prompt_ids,
                    piece.prompt_logprobs,
                    self._body.prompt_logprobs,
                )
        self._expect_next()
        return JsonResponse(
            {
                **self._head,
                "choices": [self._choice(index) for index in range(len(self._answers))],
                "usage": usage_of(self._generation, self._answers),
                "prompt_logprobs": self._prompt_logprobs,
                "prompt_token_ids": self._prompt_ids if self._body.return_token_ids else None,
            }
        )

    def _choice(self, index: int) -> dict[str, Any]:
        answer = self._answers[index]
        has_text = answer.text or not answer.calls
        message: dict[str, Any] = {
            "role": "assistant",
            "content": answer.text if has_text else None,
            "refusal": None,
        }
        if answer.thought:
            message["reasoning_content"] = answer.thought
        if answer.calls:
            message["tool_calls"] = [_call(call) for call in answer.calls]
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs_field(self._logprobs[index]),
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
            "token_ids": self._token_ids[index] if self._body.return_token_ids else None,
        }

    # ---------------------------------------------------------------- as a stream

    def begin(self) -> bytes:
        """See `Reply`: the role of each answer."""
        role = {"role": "assistant", "content": ""}
        chunks = [self._chunk([self._delta(index, role)]) for index in range(len(self._answers))]
        if self._body.return_token_ids:
            chunks[0]["prompt_token_ids"] = self._prompt_ids
        return b"".join(map(event, chunks))

    def take(self, _: int, piece: Piece) -> bytes:
        """See `Reply`."""
        answer = self._answers[piece.index]
        num_calls = len(answer.calls)
        parts = answer.take(piece)
        has_ended = answer.finish_reason is not None
        if self._is_plain and not has_ended and len(parts) < 2:  # most pieces
            if not parts:
                return b""
            if not isinstance(parts[0], ToolCall):
                return self._text_event(piece.index, parts[0])
        deltas: list[dict[str, Any]] = []
        for part in parts:
            num_calls += isinstance(part, ToolCall) and part.is_new
            deltas += _deltas(part, num_calls - 1)
        logprobs = self._token_logprobs(piece)
        if logprobs and not deltas:
            deltas = [{"content": ""}]
        if not deltas and (has_ended or self._body.return_token_ids):
            deltas = [{}]
        choices: list[dict[str, Any]] = [self._delta(piece.index, delta) for delta in deltas]
        if choices and logprobs:
            choices[0]["logprobs"] = self._logprobs_field(logprobs)
        if choices and self._body.return_token_ids:
            choices[0]["token_ids"] = piece.token_ids
        if has_ended:
            choices[-1]["finish_reason"] = answer.finish_reason
            choices[-1]["stop_reason"] = answer.stop_reason
        return b"".join(event(self._chunk([choice])) for choice in choices)

    def end(self) -> bytes:
        """See `Reply`: the usage, if it was asked for."""
        self._expect_next()
        usage = event(self._chunk([], with_usage=True)) if self._tells_usage else b""
        return usage + b"data: [DONE]\n\n"

    def fail(self, error: ApiError) -> bytes:
        """See `Reply`."""
        return error_event(error)

    def _expect_next(self) -> None:
        if len(self._answers) == 1:
            self._next_turns.expect(self._prompts, self._prompt, self._answers[0])

    def _text_event(self, index: int, part: Said | Thought) -> bytes:
        """A chunk with nothing but text, or a thought, in it."""
        kind = type(part)
        found = self._text_events.get((index, kind))
        if found is None:
            (delta,) = _deltas(kind(MARK), 0)
            found = TextEvent(event(self._chunk([self._delta(index, delta)])))
            self._text_events[index, kind] = found
        return found(part.text)

    def _delta(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _chunk(self, choices: list[Any], with_usage: bool = False) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._head, "choices": choices}
        if with_usage or self._is_continuous:
            chunk["usage"] = usage_of(self._generation, self._answers)
        return chunk

    def _token_logprobs(self, piece: Piece) -> list[dict[str, Any]]:
        if not self._answers[piece.index].in_answer:
            return []
        return self._texts[piece.index].logprobs(piece, self._body.top_logprobs or 0)

    def _logprobs_field(self, content: list[dict[str, Any]]) -> dict[str, Any] | None:
        return {"content": content, "refusal": None} if self._body.logprobs else None


def _deltas(part: Part, index: int) -> list[dict[str, Any]]:
    """A part as deltas: a tool call's name comes first, then its arguments.

    Args:
        part: of the answer.
        index: of the call that it is a part of.
    """
    match part:
        case Said(text):
            return [{"content": text}]
        case Thought(text):
            return [{"reasoning_content": text}]
        case ToolCall(name, arguments, call_id, is_new):
            function = {"name": name, "arguments": ""}
            head = {"index": index, "id": call_id, "type": "function", "function": function}
            more = {"index": index, "function": {"arguments": arguments}}
            return [
                {"tool_calls": [delta]}
                for delta, is_told in ((head, is_new), (more, arguments))
                if is_told
            ]


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
