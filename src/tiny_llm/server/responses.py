"""`POST /v1/responses`: OpenAI's newer protocol. An answer is a list of items."""

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from .answer import Answer, TokenTexts
from .answer_parser import AnswerParser, Thought
from .bridge import Generation
from .documents import ERRORS, streams
from .errors import ApiError, JsonResponse
from .prompts import ChatPrompt
from .replies import EventStream, event, whole
from .response_items import Event, Items
from .responses_types import ResponsesBody
from .sampling import make_params
from .seam import Piece
from .server import Server, server_of

PATH = "/v1/responses"

router = APIRouter()


@router.post(PATH, tags=["OpenAI"], response_class=JsonResponse, responses=streams(ERRORS))
async def create_response(body: ResponsesBody, request: Request) -> Response:
    """Answers a conversation, at once or as a stream of events."""
    server = server_of(request)
    server.check_model(body.model)
    body.check_honoured()
    params = make_params(
        server.defaults,
        **body.shared_params(body.max_output_tokens),
        logprobs=body.logprobs,
        structured_outputs=body.form(),
    )
    prompt = await server.prompts.run(_make_prompt, server, body)
    generation = await server.begin([prompt.token_ids], params, prompt.may_think)
    reply = ResponseReply(server, body, generation, prompt)
    if not body.stream:
        return await whole(request.receive, generation, reply.whole())
    return EventStream(reply, generation, server.settings.keep_alive)


@router.post(f"{PATH}/input_tokens", tags=["OpenAI"], responses=ERRORS)
async def count_input_tokens(body: ResponsesBody, request: Request) -> dict[str, Any]:
    """How many tokens the input of a response has."""
    server = server_of(request)
    server.check_model(body.model)
    body.check_honoured()
    prompt = await server.prompts.run(_make_prompt, server, body)
    return {"object": "response.input_tokens", "input_tokens": len(prompt.token_ids)}


def _make_prompt(server: Server, body: ResponsesBody) -> ChatPrompt:
    return server.prompts.chat(body.for_template(), body.usable_tools, body.template_variables())


class ResponseReply:
    """Writes an answer as a response.

    Args:
        server, body, generation, prompt: of the request.
    """

    def __init__(
        self, server: Server, body: ResponsesBody, generation: Generation, prompt: ChatPrompt
    ):
        self._body = body
        self._generation = generation
        self._next_turns, self._prompts = server.next_turns, server.prompts
        self._prompt = prompt
        self._model = server.settings.model_name
        self._params = {"temperature": body.temperature, "top_p": body.top_p}
        self._params = {
            name: server.defaults.get(name, 1.0) if value is None else value
            for name, value in self._params.items()
        }
        parser = AnswerParser(
            prompt.may_think, prompt.in_thought, body.uses_tools, bool(body.stream)
        )
        self._answer = Answer(parser, body.parallel_tool_calls is False)
        self._texts = TokenTexts(self._prompts)
        self._logprobs: list[dict[str, Any]] = []  # that were not told yet
        self._items = Items(body.encrypts_thoughts)
        self._id = f"resp_{uuid.uuid4().hex}"
        self._created = time.time()
        self._number = -1

    async def whole(self) -> Response:
        """The response when it is finished."""
        async for pieces in self._generation.news():
            for _, piece in pieces:
                self._take(piece)
        self._finish()
        return JsonResponse(self._response(self._status))

    def begin(self) -> bytes:
        """See `Reply`."""
        names = ("response.created", "response.in_progress")
        return b"".join(self._about(name, "in_progress") for name in names)

    def take(self, _: int, piece: Piece) -> bytes:
        """See `Reply`."""
        return b"".join(map(self._event, self._take(piece)))

    def end(self) -> bytes:
        """See `Reply`."""
        last = b"".join(map(self._event, self._finish()))
        return last + self._about(f"response.{self._status}", self._status)

    def _take(self, piece: Piece) -> list[Event]:
        """Adds a piece to the items. Its log-probabilities go to the first text that follows."""
        parts = self._answer.take(piece)
        if self._answer.in_answer:
            self._logprobs += self._texts.logprobs(piece, self._body.logprobs or 0)
        happened = []
        for part in parts:
            logprobs = []
            if not isinstance(part, Thought):  # tokens of calls are not told
                logprobs, self._logprobs = self._logprobs, []
            happened += self._items.take(part, logprobs)
        return happened

    def _finish(self) -> list[Event]:
        self._next_turns.expect(self._prompts, self._prompt, self._answer)
        return self._items.finish(self._cut)

    def fail(self, error: ApiError) -> bytes:
        """See `Reply`."""
        response = self._response("failed")
        response["error"] = {"code": "server_error", "message": error.message}
        return self._event({"type": "response.failed", "response": response})

    @property
    def _cut(self) -> bool:
        return self._answer.finish_reason == "length"

    @property
    def _status(self) -> str:
        return "incomplete" if self._cut else "completed"

    def _about(self, name: str, status: str) -> bytes:
        return self._event({"type": name, "response": self._response(status)})

    def _event(self, data: Event) -> bytes:
        self._number += 1
        return event({**data, "sequence_number": self._number}, data["type"])

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
            "incomplete_details": {"reason": "max_output_tokens"} if self._cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "max_tool_calls": body.max_tool_calls,
            "model": self._model,
            "output": self._items.items if is_done else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": body.prompt_cache_key,
            "safety_identifier": body.safety_identifier,
            "reasoning": {
                "effort": body.effort,
                "summary": None,
            },
            "service_tier": "default",
            "store": False,
            **self._params,
            "text": {"format": self._format(), "verbosity": "medium"},
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

    def _format(self) -> dict[str, Any]:
        text = self._body.text
        if text is None or text.format is None:
            return {"type": "text"}
        given = text.format.model_dump(by_alias=True)
        if text.format.type != "json_schema":
            return {"type": text.format.type}
        return {**given, "name": text.format.name or "", "strict": bool(text.format.strict)}

    def _usage(self) -> dict[str, Any]:
        prompt, answer = self._generation.prompt_tokens, self._answer
        return {
            "input_tokens": prompt,
            "input_tokens_details": {"cached_tokens": self._generation.cached_tokens},
            "output_tokens": answer.tokens,
            "output_tokens_details": {"reasoning_tokens": answer.thinking_tokens},
            "total_tokens": prompt + answer.tokens,
        }
