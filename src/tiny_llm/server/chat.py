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
from .replies import Events, EventStream, event, whole
from .seam import Piece
from .server import Server, server_of
from .usage import usage_of

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
    params = body.sampling_params(server.defaults, limit, logprobs, body.form())
    generation = await server.begin([prompt.token_ids], params, prompt.may_think)
    reply = ChatReply(server, body, generation, prompt, params.n)
    if not body.stream:
        return await whole(request.receive, generation, reply.whole())
    return EventStream(reply.events(), generation, error_event, server.settings.keep_alive)


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
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": server.settings.model_name,
        }
        one_call = body.parallel_tool_calls is False
        self._answers = [
            Answer(
                AnswerParser(
                    prompt.may_think, prompt.in_thought, body.uses_tools, bool(body.stream)
                ),
                one_call,
            )
            for _ in range(n)
        ]
        self._texts = [TokenTexts(server.prompts) for _ in range(n)]
        self._logprobs: list[list[dict[str, Any]]] = [[] for _ in range(n)]

    # ---------------------------------------------------------------- at once

    async def whole(self) -> Response:
        """The answer when it is finished."""
        async for _, piece in self._generation.pieces():
            self._answers[piece.index].take(piece)
            self._logprobs[piece.index] += self._token_logprobs(piece)
        return JsonResponse(
            {
                **self._head,
                "object": "chat.completion",
                "choices": [self._choice(index) for index in range(len(self._answers))],
                "usage": usage_of(self._generation, self._answers),
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
        }

    # ---------------------------------------------------------------- as a stream

    async def events(self) -> Events:
        """The answer as it comes."""
        for index in range(len(self._answers)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for _, piece in self._generation.pieces():
            answer = self._answers[piece.index]
            num_calls = len(answer.calls)
            deltas = []
            for part in answer.take(piece):
                num_calls += isinstance(part, ToolCall) and part.is_new
                deltas += _deltas(part, num_calls - 1)
            logprobs = self._token_logprobs(piece)
            if logprobs and not deltas:
                deltas = [{"content": ""}]
            for delta in deltas:
                yield self._chunk(piece.index, delta, logprobs)
                logprobs = []
            if answer.finish_reason is not None:
                yield self._chunk(piece.index, {}, [], answer)
        options = self._body.stream_options
        if options is not None and options.include_usage:
            yield event(self._whole_chunk([], with_usage=True))
        yield b"data: [DONE]\n\n"

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        logprobs: list[dict[str, Any]] | None = None,
        ended: Answer | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs_field(logprobs) if logprobs else None,
            "finish_reason": None if ended is None else ended.finish_reason,
        }
        if ended is not None:
            choice["stop_reason"] = ended.stop_reason
        options = self._body.stream_options
        return event(self._whole_chunk([choice], options is not None and options.is_continuous))

    def _whole_chunk(self, choices: list[Any], with_usage: bool) -> dict[str, Any]:
        chunk = {**self._head, "object": "chat.completion.chunk", "choices": choices}
        if with_usage:
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
