"""`POST /v1/completions`: texts or token ids in, what follows them out."""

import time
import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from .answer import Answer, text_tokens
from .answer_parser import AnswerParser
from .bridge import Generation
from .chat_types import StreamOptions
from .documents import ERRORS, streams
from .errors import ApiError, JsonResponse, refused
from .prompts import Prompts
from .replies import Events, EventStream, event, whole
from .sampling import Count, SamplingFields, TokenId
from .seam import Piece
from .server import Server, server_of
from .service import check_token_ids
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
    max_tokens: Count | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    suffix: str | None = None
    best_of: int | None = None

    def check_honoured(self) -> None:
        """See `SamplingFields`."""
        super().check_honoured()
        if self.stream_options is not None and not self.stream:
            raise refused("stream_options needs stream: true.", "stream_options")
        if self.suffix is not None:
            raise refused("suffix is not supported: the model writes forwards only.", "suffix")
        if self.best_of not in (None, 1, self.n):
            raise refused("best_of must be n, or be left out.", "best_of")
        if self.echo and self.logprobs is not None:
            raise refused(
                "echo with logprobs is not supported; leave one of the two out.", "logprobs"
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
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = body.sampling_params(server.defaults, limit, body.logprobs)
    prompts = server.prompts
    encoded = await prompts.run(_encode, server, body.prompts())
    generation = await server.begin([ids for ids, _ in encoded], params)
    echoed = [text if body.echo else "" for _, text in encoded]
    reply = CompletionReply(server, body, generation, echoed, params.n)
    if not body.stream:
        return await whole(request.receive, generation, reply.whole())
    return EventStream(reply.events(), generation, error_event, server.settings.keep_alive)


def error_event(error: ApiError) -> bytes:
    """The end of a stream that failed."""
    return event(error.body(PATH)) + b"data: [DONE]\n\n"


def _encode(server: Server, given: list[str | list[int]]) -> list[tuple[list[int], str]]:
    """Each prompt as token ids and as a text."""
    prompts, encoded = server.prompts, []
    for prompt in given:
        if isinstance(prompt, str):
            encoded.append((prompts.encode(prompt), prompt))
        else:
            check_token_ids(server.bridge.loaded, prompt)
            encoded.append((prompt, prompts.decode(prompt)))
    return encoded


class CompletionReply:
    """Writes the answers in OpenAI's form. Answer `i` of prompt `p` has the index `p · n + i`.

    Args:
        server, body, generation: of the request.
        echoed: a text before the answers to each prompt.
        n: how many answers a prompt has.
    """

    def __init__(
        self,
        server: Server,
        body: CompletionBody,
        generation: Generation,
        echoed: list[str],
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
        self._echoed = [text for text in echoed for _ in range(n)]
        self._answers = [
            Answer(AnswerParser(may_think=False, in_thought=False, may_call=False))
            for _ in self._echoed
        ]
        self._logprobs = [TextLogprobs(server.prompts) for _ in self._echoed]

    async def whole(self) -> Response:
        """The answers when they are finished."""
        async for number, piece in self._generation.pieces():
            index = number * self._n + piece.index
            self._answers[index].take(piece)
            self._logprobs[index].take(piece)
        choices = [
            self._choice(index, self._echoed[index] + answer.text, self._logprobs[index], answer)
            for index, answer in enumerate(self._answers)
        ]
        usage = usage_of(self._generation, self._answers)
        return JsonResponse({**self._head, "choices": choices, "usage": usage})

    async def events(self) -> Events:
        """The answers as they come."""
        for index, text in enumerate(self._echoed):
            if text:
                yield self._chunk([self._choice(index, text, None, None)])
        async for number, piece in self._generation.pieces():
            index = number * self._n + piece.index
            answer, logprobs = self._answers[index], self._logprobs[index]
            answer.take(piece)
            logprobs.take(piece)
            if piece.text or piece.finish_reason or logprobs.tokens:
                ended = answer if answer.finish_reason is not None else None
                yield self._chunk([self._choice(index, piece.text, logprobs, ended)])
                logprobs.clear()
        options = self._body.stream_options
        if options is not None and options.include_usage:
            yield self._chunk([], usage_of(self._generation, self._answers))
        yield b"data: [DONE]\n\n"

    def _choice(
        self, index: int, text: str, logprobs: "TextLogprobs | None", ended: Answer | None
    ) -> dict[str, Any]:
        wanted = self._body.logprobs is not None and logprobs is not None
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": logprobs.field(self._body.logprobs or 0) if wanted and logprobs else None,
            "finish_reason": None if ended is None else ended.finish_reason,
        }
        if ended is not None:
            choice["stop_reason"] = ended.stop_reason
        return choice

    def _chunk(self, choices: list[Any], usage: dict[str, Any] | None = None) -> bytes:
        chunk = {**self._head, "choices": choices}
        return event(chunk if usage is None else {**chunk, "usage": usage})


class TextLogprobs:
    """The log-probabilities of a completion: lists, with a place for each token.

    Args:
        prompts: knows the texts of tokens.

    Attributes:
        tokens: the tokens' texts, since `clear`.
    """

    def __init__(self, prompts: Prompts):
        self._prompts = prompts
        self._offset = 0
        self.clear()

    def clear(self) -> None:
        """Forgets what was told."""
        self.tokens: list[str] = []
        self._own: list[float] = []
        self._top: list[list[tuple[int, float]]] = []
        self._offsets: list[int] = []

    def take(self, piece: Piece) -> None:
        """Adds the tokens of a piece."""
        for token, likely in text_tokens(piece):
            text = self._text(token)
            self.tokens.append(text)
            self._own.append(likely[token])
            self._top.append(sorted(likely.items(), key=lambda pair: (-pair[1], pair[0])))
            self._offsets.append(self._offset)
            self._offset += len(text)

    def field(self, top: int) -> dict[str, Any]:
        """What `logprobs` of a choice is; `top` alternatives for each token."""
        return {
            "tokens": self.tokens,
            "token_logprobs": self._own,
            "top_logprobs": [
                {self._text(token): logprob for token, logprob in likely[:top]}
                for likely in self._top
            ]
            if top
            else None,
            "text_offset": self._offsets,
        }

    def _text(self, token: int) -> str:
        return self._prompts.token_bytes(token).decode(errors="replace")
