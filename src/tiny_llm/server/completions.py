"""`POST /v1/completions`: texts or token ids in, what follows them out."""

import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from .answer import Answer
from .answer_parser import AnswerParser
from .bridge import Generation
from .chat_types import StreamOptions
from .documents import ERRORS, streams
from .errors import ApiError, JsonResponse, refused
from .replies import Events, EventStream, event, whole
from .sampling import LARGEST, SamplingFields, TokenId
from .seam import Piece
from .server import Server, server_of
from .text_logprobs import TextLogprobs
from .tokenize import check_token_ids
from .usage import usage_of

PATH = "/v1/completions"
DEFAULT_MAX_TOKENS = 16  # OpenAI's

router = APIRouter()

TokenIds = Annotated[list[TokenId], Field(min_length=1)]


class CompletionBody(SamplingFields):
    """The body of a request."""

    prompt: (
        str
        | TokenIds
        | Annotated[list[str], Field(min_length=1, max_length=256)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=256)]
    )
    max_tokens: Annotated[int, Field(ge=0, le=LARGEST)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: str | None = None
    best_of: int | None = None

    def check_honoured(self) -> None:
        """Refuses what this server cannot do, and fields that contradict each other.

        Raises:
            ApiError: the first such field.
        """
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options needs stream: true.", "stream_options")
        if self.suffix is not None:
            raise refused("suffix is not supported: the model writes forwards only.", "suffix")
        if self.best_of not in (None, 1, self.n):
            raise refused("best_of must be n, or be left out.", "best_of")
        if self.max_tokens == 0 and not self.echo:
            raise refused(
                "max_tokens is not valid: it must be at least 1, or 0 with echo.", "max_tokens"
            )

    def prompts(self) -> list[str | list[int]]:
        """The prompts, one by one."""
        given = self.prompt
        if isinstance(given, str) or isinstance(given[0], int):
            return [given]
        return list(given)


@router.post(PATH, tags=["OpenAI"], response_class=JsonResponse, responses=streams(ERRORS))
async def create_completion(body: CompletionBody, request: Request) -> Response:
    """Continues prompts, at once or as a stream of events."""
    server = server_of(request)
    server.check_model(body.model)
    body.check_honoured()
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
    scored = body.logprobs if body.echo else None
    params = body.sampling_params(server.defaults, limit, body.logprobs, prompt_logprobs=scored)
    prompts = server.prompts
    encoded = await prompts.run(_encode, server, body.prompts(), bool(body.echo))
    generation = await server.begin([ids for ids, _ in encoded], params)
    reply = CompletionReply(server, body, generation, encoded, params.n)
    if not body.stream:
        return await whole(request.receive, generation, reply.whole())
    return EventStream(reply.events(), generation, error_event, server.settings.keep_alive)


def error_event(error: ApiError) -> bytes:
    """The end of a stream that failed."""
    return event(error.body(PATH)) + b"data: [DONE]\n\n"


def _encode(
    server: Server, given: list[str | list[int]], with_texts: bool
) -> list[tuple[list[int], str]]:
    """Each prompt as token ids, and as a text where that is needed."""
    prompts, encoded = server.prompts, []
    for prompt in given:
        if isinstance(prompt, str):
            encoded.append((prompts.encode(prompt), prompt))
        else:
            check_token_ids(server.bridge.loaded, prompt)
            encoded.append((prompt, prompts.decode(prompt) if with_texts else ""))
    return encoded


class CompletionReply:
    """Writes the answers in OpenAI's form. Answer `i` of prompt `p` has the index `p · n + i`.

    Args:
        server, body, generation: of the request.
        encoded: the prompts, as token ids and texts.
        n: how many answers a prompt has.
    """

    def __init__(
        self,
        server: Server,
        body: CompletionBody,
        generation: Generation,
        encoded: list[tuple[list[int], str]],
        n: int,
    ):
        self._body = body
        self._generation = generation
        self._n = n
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": server.settings.model_name,
        }
        self._prompt_ids = [ids for ids, _ in encoded]
        self._scores_prompt = bool(body.echo) and body.logprobs is not None
        self._echoed = [text if body.echo else "" for _, text in encoded for _ in range(n)]
        self._answers = [
            Answer(AnswerParser(may_think=False, in_thought=False, may_call=False))
            for _ in self._echoed
        ]
        self._logprobs = [TextLogprobs(server.prompts) for _ in self._echoed]

    async def whole(self) -> Response:
        """The answers when they are finished."""
        async for number, piece in self._pieces():
            index = number * self._n + piece.index
            self._answers[index].take(piece)
            self._logprobs[index].take(piece)
        choices = [
            self._choice(index, self._echoed[index] + answer.text, answer)
            for index, answer in enumerate(self._answers)
        ]
        usage = usage_of(self._generation, self._answers)
        return JsonResponse({**self._head, "choices": choices, "usage": usage})

    async def events(self) -> Events:
        """The answers as they come."""
        if not self._scores_prompt:
            for index, text in enumerate(self._echoed):
                if text:
                    yield self._chunk([self._choice(index, text, None)])
        async for number, piece in self._pieces():
            index = number * self._n + piece.index
            answer, logprobs = self._answers[index], self._logprobs[index]
            if logprobs:  # those of the prompt
                yield self._chunk([self._choice(index, self._echoed[index], None)])
                logprobs.clear()
            answer.take(piece)
            logprobs.take(piece)
            if piece.text or piece.finish_reason or logprobs:
                ended = answer if answer.finish_reason is not None else None
                yield self._chunk([self._choice(index, piece.text, ended)])
                logprobs.clear()
        options = self._body.stream_options
        if options is not None and options.include_usage:
            yield self._chunk([], with_usage=True)
        yield b"data: [DONE]\n\n"

    async def _pieces(self) -> AsyncIterator[tuple[int, Piece]]:
        """The pieces, with the number of the prompt.

        If the prompts' log-probabilities are told, a prompt's pieces wait for them: they come with
        its answer 0.
        """
        early: dict[int, list[Piece]] = {number: [] for number in range(len(self._prompt_ids))}
        async for number, piece in self._generation.pieces():
            if self._body.max_tokens == 0:  # the engine computes one token, which nobody asked for
                reason = piece.finish_reason and "length"
                piece = replace(piece, text="", token_ids=(), logprobs=(), finish_reason=reason)
            if not self._scores_prompt or number not in early:
                yield number, piece
                continue
            early[number].append(piece)
            if piece.prompt_logprobs is None:
                continue
            for index in range(number * self._n, (number + 1) * self._n):
                self._logprobs[index].take_prompt(self._prompt_ids[number], piece.prompt_logprobs)
            for waiting in early.pop(number):
                yield number, waiting

    def _choice(self, index: int, text: str, ended: Answer | None) -> dict[str, Any]:
        is_wanted = self._body.logprobs is not None
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs[index].field() if is_wanted else None,
            "finish_reason": None if ended is None else ended.finish_reason,
        }
        if ended is not None:
            choice["stop_reason"] = ended.stop_reason
        return choice

    def _chunk(self, choices: list[Any], with_usage: bool = False) -> bytes:
        chunk: dict[str, Any] = {**self._head, "choices": choices}
        options = self._body.stream_options
        if with_usage or (options is not None and options.is_continuous):
            chunk["usage"] = usage_of(self._generation, self._answers)
        return event(chunk)
