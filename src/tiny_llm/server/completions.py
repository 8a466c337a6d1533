"""`POST /v1/completions`: texts or token ids in, what follows them out."""

import time
import uuid
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
from .replies import MARK, EventStream, TextEvent, event, whole
from .sampling import LARGEST, Form, SamplingFields, TokenId
from .seam import Piece
from .server import Server, server_of
from .text_logprobs import TextLogprobs, prompt_logprobs_field
from .tokenize import check_token_ids
from .usage import FINGERPRINT, usage_of

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
        self.check_stream(bool(self.stream), self.stream_options is not None)
        if self.suffix is not None:
            raise refused("suffix is not supported: the model writes forwards only.", "suffix")
        if self.best_of not in (None, 1, self.n):
            raise refused("best_of must be n, or be left out.", "best_of")
        if self.max_tokens == 0 and not self.echo:
            raise refused(
                "max_tokens is not valid: it must be at least 1, or 0 with echo.", "max_tokens"
            )

    @property
    def num_scored(self) -> int | None:
        """How many likely tokens the engine tells for each of the prompt; None for no telling."""
        asked = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((number for number in asked if number is not None), default=None)

    def form(self) -> Form | None:
        """The form that the answer must have; None if it is free, or `structured_outputs` says it.

        Raises:
            ApiError: a schema is missing.
        """
        return None if self.response_format is None else self.response_format.form()

    @property
    def is_encoded(self) -> bool:
        """Whether the prompts are token ids, and no text of theirs is asked for."""
        return not self.echo and not any(isinstance(prompt, str) for prompt in self.prompts())

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
    params = body.sampling_params(
        server.defaults, limit, body.logprobs, body.form(), body.num_scored
    )
    if body.is_encoded:
        encoded = _encode(server, body)
    else:
        encoded = await server.prompts.run(_encode, server, body)
    generation = await server.begin([ids for ids, _ in encoded], params)
    reply = CompletionReply(server, body, generation, encoded, params.n)
    if not body.stream:
        return await whole(request.receive, generation, reply.whole())
    return EventStream(reply, generation, server.settings.keep_alive)


def error_event(error: ApiError) -> bytes:
    """The end of a stream that failed."""
    return event(error.body(PATH)) + b"data: [DONE]\n\n"


def _encode(server: Server, body: CompletionBody) -> list[tuple[list[int], str]]:
    """Each prompt as token ids, and as a text where that is needed."""
    prompts, encoded = server.prompts, []
    for prompt in body.prompts():
        if isinstance(prompt, str):
            token_ids = prompts.encode(prompt, body.add_special_tokens is not False)
            encoded.append((token_ids, prompt))
        else:
            check_token_ids(server.bridge.loaded, prompt)
            encoded.append((prompt, prompts.decode(prompt) if body.echo else ""))
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
        self._prompts = server.prompts
        self._n = n
        self._head = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": server.settings.model_name,
            "system_fingerprint": FINGERPRINT,
        }
        self._prompt_ids = [ids for ids, _ in encoded]
        self._scores_prompt = body.num_scored is not None
        self._scored: list[tuple[Any, ...] | None] = [None] * len(encoded)  # by prompt
        self._waiting: dict[int, list[Piece]] = {}  # for them, by prompt
        self._echoed = [text if body.echo else "" for _, text in encoded for _ in range(n)]
        self._answers = [
            Answer(AnswerParser(may_think=False, in_thought=False, may_call=False))
            for _ in self._echoed
        ]
        as_ids = bool(body.return_tokens_as_token_ids)
        self._logprobs = [
            TextLogprobs(server.prompts, body.logprobs or 0, as_ids) for _ in self._echoed
        ]
        self._token_ids: list[list[int]] = [[] for _ in self._echoed]  # that were not told
        options = body.stream_options
        self._tells_usage = options is not None and bool(options.include_usage)
        self._is_continuous = options is not None and options.is_continuous
        is_more = body.logprobs is not None or body.return_token_ids or self._is_continuous
        self._is_plain = not is_more  # a chunk that does not end an answer has nothing but text
        # Whether a piece is a chunk as it comes: nothing has to wait for it, or to be left out.
        self._is_direct = self._is_plain and not self._scores_prompt and body.max_tokens != 0
        self._text_events: dict[int, TextEvent] = {}

    # ---------------------------------------------------------------- at once

    async def whole(self) -> Response:
        """The answers when they are finished."""
        async for pieces in self._generation.news():
            for number, piece in pieces:
                for index, ready in self._ready(number, piece):
                    self._answers[index].take(ready)
                    self._logprobs[index].take(ready)
                    self._token_ids[index] += ready.token_ids
        choices = [
            self._whole_choice(index, self._echoed[index] + answer.text)
            for index, answer in enumerate(self._answers)
        ]
        usage = usage_of(self._generation, self._answers)
        return JsonResponse({**self._head, "choices": choices, "usage": usage})

    def _whole_choice(self, index: int, text: str) -> dict[str, Any]:
        number, body = index // self._n, self._body
        prompt_ids = self._prompt_ids[number]
        scored = prompt_logprobs_field(
            self._prompts, prompt_ids, self._scored[number], body.prompt_logprobs
        )
        return {
            **self._choice(index, text, self._answers[index]),
            "prompt_logprobs": scored,
            "token_ids": self._token_ids[index] if body.return_token_ids else None,
            "prompt_token_ids": prompt_ids if body.return_token_ids else None,
        }

    # ---------------------------------------------------------------- as a stream

    def begin(self) -> bytes:
        """See `Reply`: the prompts, if they are echoed and nothing else is told of them."""
        if self._scores_prompt:
            return b""
        told = [(index, text) for index, text in enumerate(self._echoed) if text]
        return b"".join(self._chunk([self._choice(index, text, None)]) for index, text in told)

    def take(self, number: int, piece: Piece) -> bytes:
        """See `Reply`."""
        if self._is_direct and piece.finish_reason is None:  # most pieces
            index = number * self._n + piece.index
            self._answers[index].take(piece)
            return self._text_event(index, piece.text) if piece.text else b""
        return b"".join(self._grow(index, ready) for index, ready in self._ready(number, piece))

    def end(self) -> bytes:
        """See `Reply`: the usage, if it was asked for."""
        usage = self._chunk([], with_usage=True) if self._tells_usage else b""
        return usage + b"data: [DONE]\n\n"

    def fail(self, error: ApiError) -> bytes:
        """See `Reply`."""
        return error_event(error)

    def _grow(self, index: int, piece: Piece) -> bytes:
        """Chunks for a piece of an answer."""
        answer, logprobs = self._answers[index], self._logprobs[index]
        chunks = b""
        if logprobs:  # those of the prompt
            chunks = self._chunk([self._choice(index, self._echoed[index], None)])
            logprobs.clear()
        answer.take(piece)
        has_ended = answer.finish_reason is not None
        if self._is_plain and not has_ended:
            return chunks + self._text_event(index, piece.text) if piece.text else chunks
        logprobs.take(piece)
        if piece.text or has_ended or logprobs or (self._body.return_token_ids and piece.token_ids):
            choice = self._choice(index, piece.text, answer if has_ended else None)
            if self._body.return_token_ids:
                choice["token_ids"] = piece.token_ids
                is_first = answer.tokens == len(piece.token_ids)
                choice["prompt_token_ids"] = (
                    self._prompt_ids[index // self._n] if is_first else None
                )
            chunks += self._chunk([choice])
            logprobs.clear()
        return chunks

    def _text_event(self, index: int, text: str) -> bytes:
        found = self._text_events.get(index)
        if found is None:
            found = TextEvent(self._chunk([self._choice(index, MARK, None)]))
            self._text_events[index] = found
        return found(text)

    def _ready(self, number: int, piece: Piece) -> list[tuple[int, Piece]]:
        """The pieces that can be told, with the index of their answer.

        If the prompts' log-probabilities are told, a prompt's pieces wait for them: they come with
        its answer 0.
        """
        if self._body.max_tokens == 0:  # the engine computes one token, which nobody asked for
            reason = piece.finish_reason and "length"
            piece = replace(piece, text="", token_ids=(), logprobs=(), finish_reason=reason)
        first = number * self._n
        if self._scores_prompt and self._scored[number] is None:
            waiting = self._waiting.setdefault(number, [])
            waiting.append(piece)
            if piece.prompt_logprobs is None:
                return []
            self._scored[number] = piece.prompt_logprobs
            if self._body.echo and self._body.logprobs is not None:
                for own in self._logprobs[first : first + self._n]:
                    own.take_prompt(self._prompt_ids[number], piece.prompt_logprobs)
            return [(first + one.index, one) for one in self._waiting.pop(number)]
        return [(first + piece.index, piece)]

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
        if with_usage or self._is_continuous:
            chunk["usage"] = usage_of(self._generation, self._answers)
        return event(chunk)
