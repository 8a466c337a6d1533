"""`POST /v1/completions`: request schema, handler and serialization."""

from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from ...engine.outputs.output_parser import OutputParser
from ...engine.scheduling.request import StreamOutput
from ..engine_client.request_stream import RequestStream
from ..http.errors import ERROR_RESPONSES, bad_request, streaming_route
from ..models.requests import ParsedOutput, use_model
from ..models.served_model import ServedModel
from ..protocol.logprobs import CompletionLogprobs, prompt_logprobs_field
from ..protocol.prompts import PromptRenderer
from ..protocol.request_fields import INT64_MAX, PromptIds, as_prompt_list
from ..protocol.streaming import respond
from .chat import ChoicesSerializer
from .chat_schema import SamplingFields

PATH = "/v1/completions"
DEFAULT_MAX_TOKENS = 16  # OpenAI's default

router = APIRouter()


class CompletionRequest(SamplingFields):
    prompt: (
        str
        | PromptIds
        | Annotated[list[str], Field(min_length=1, max_length=256, fail_fast=True)]
        | Annotated[list[PromptIds], Field(min_length=1, max_length=256, fail_fast=True)]
    )
    max_tokens: Annotated[int, Field(ge=0, le=INT64_MAX)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: int | None = None

    def check_fields(self) -> None:
        super().check_fields()
        if self.best_of not in (None, 1, self.n):
            raise bad_request(f"best_of must equal n, got {self.best_of}; omit it.", "best_of")
        if self.max_tokens == 0 and not self.echo:
            raise bad_request("max_tokens must be at least 1, or 0 with echo.", "max_tokens")

    @property
    def num_prompt_logprobs(self) -> int | None:
        """Number of alternatives per prompt token; None for no prompt logprobs."""
        requested = [self.prompt_logprobs, self.logprobs if self.echo else None]
        return max((number for number in requested if number is not None), default=None)


@streaming_route(router, PATH, "OpenAI", ERROR_RESPONSES)
async def create_completion(body: CompletionRequest, request: Request) -> Response:
    """Creates completions. With `stream`, sends server-sent events."""
    model = await use_model(request, body, "generate", bool(body.stream))
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
    params = body.sampling_params(
        model.defaults, limit, body.logprobs, body.response_constraint(), body.num_prompt_logprobs
    )
    if body.echo or any(isinstance(prompt, str) for prompt in as_prompt_list(body.prompt)):
        encoded = await model.prompts.run(_encode, model, body)
    else:
        encoded = _encode(model, body)
    stream = await model.submit([ids for ids, _ in encoded], params, name=body.model)
    serializer = CompletionSerializer(model.prompts, body, stream, encoded, params.n)
    return await respond(request, stream, serializer, bool(body.stream), model.settings.keep_alive)


def _encode(model: ServedModel, body: CompletionRequest) -> list[tuple[list[int], str]]:
    """Returns each prompt's token ids and text; decodes ids only for `echo`.

    Rejects a long text before encoding the next.
    """
    prompts, encoded = model.prompts, []
    for prompt in as_prompt_list(body.prompt):
        if isinstance(prompt, str):
            token_ids = prompts.encode(prompt, body.add_special_tokens is not False)
            model.check_prompt(token_ids)
            encoded.append((token_ids, prompt))
        else:
            if body.echo:
                model.check_token_ids("the prompt", prompt)
            encoded.append((prompt, prompts.decode(prompt) if body.echo else ""))
    return encoded


class CompletionSerializer(ChoicesSerializer):
    """Serializes completions.

    With `n` completions per prompt, completion `i` of prompt `p` is choice `p · n + i`.
    """

    def __init__(
        self,
        prompts: PromptRenderer,
        body: CompletionRequest,
        stream: RequestStream,
        encoded: list[tuple[list[int], str]],
        n: int,
    ):
        self._echoed = [text if body.echo else "" for _, text in encoded for _ in range(n)]
        outputs = [
            ParsedOutput(OutputParser(thinking_enabled=False, reasoning_open=False))
            for _ in self._echoed
        ]
        has_logprobs = body.logprobs is not None
        super().__init__(PATH, "cmpl", "text_completion", body, stream, outputs, has_logprobs)
        self._body = body
        self._prompts = prompts
        self._n = n
        self._prompt_ids = [ids for ids, _ in encoded]
        self._wants_prompt_logprobs = body.num_prompt_logprobs is not None
        # By prompt, converted when they arrive: converting all at the end would block the loop.
        self._prompt_logprobs: dict[int, list[Any] | None] = {}
        # By prompt: outputs held back until the prompt's logprobs arrive.
        self._pending: dict[int, list[StreamOutput]] = {}
        as_token_ids = bool(body.return_tokens_as_token_ids)
        # Clients that score prompts drop the last entry as the completion's, which may be EOS.
        with_end = as_token_ids or bool(body.echo)
        self._logprobs = [
            CompletionLogprobs(prompts, body.logprobs or 0, as_token_ids, with_end)
            for _ in self._echoed
        ]
        # Whether each output is sent as received, without buffering or filtering.
        self._is_passthrough = (
            self._is_text_only and not self._wants_prompt_logprobs and body.max_tokens != 0
        )

    def add(self, output: StreamOutput) -> None:
        for index, ready in self._ready_outputs(output):
            self._outputs[index].add(ready)
            self._logprobs[index].add(ready)
            self._token_ids[index] += ready.token_ids

    def full_response(self) -> dict[str, Any]:
        choices = [
            self._full_choice(index, self._echoed[index] + parsed.text)
            for index, parsed in enumerate(self._outputs)
        ]
        return {**self._envelope, "choices": choices, "usage": self._usage()}

    def _full_choice(self, index: int, text: str) -> dict[str, Any]:
        number = index // self._n
        return {
            **self._choice(index, text, self._outputs[index]),
            "prompt_logprobs": self._prompt_logprobs.get(number),
            "token_ids": self._token_ids[index] if self._return_token_ids else None,
            "prompt_token_ids": self._prompt_ids[number] if self._return_token_ids else None,
        }

    def start_events(self) -> bytes:
        if self._wants_prompt_logprobs:
            return b""
        echoed = [(index, text) for index, text in enumerate(self._echoed) if text]
        return b"".join(self._chunk([self._choice(index, text)]) for index, text in echoed)

    def delta_events(self, output: StreamOutput) -> bytes:
        # Fast path: a chunk that contains only text.
        if self._is_passthrough and output.finish_reason is None:
            number = self._stream.prompt_index[output.request_id]
            index = number * self._n + output.index
            self._outputs[index].add(output)
            return self._text_chunk(index, output.text)
        return b"".join(
            self._output_events(index, ready) for index, ready in self._ready_outputs(output)
        )

    def _output_events(self, index: int, output: StreamOutput) -> bytes:
        parsed, logprobs = self._outputs[index], self._logprobs[index]
        chunks = b""
        if logprobs:  # the echoed prompt has not been sent
            chunks = self._chunk([self._choice(index, self._echoed[index])])
            logprobs.clear()
        parsed.add(output)
        has_ended = parsed.finish_reason is not None
        if self._is_text_only and not has_ended:
            return chunks + self._text_chunk(index, output.text)
        logprobs.add(output)
        if output.text or has_ended or logprobs or (self._return_token_ids and output.token_ids):
            choice = self._choice(index, output.text, parsed if has_ended else None)
            if self._return_token_ids:
                choice["token_ids"] = output.token_ids
                is_first = parsed.tokens == len(output.token_ids)
                choice["prompt_token_ids"] = (
                    self._prompt_ids[index // self._n] if is_first else None
                )
            chunks += self._chunk([choice])
            logprobs.clear()
        return chunks

    def _text_chunk(self, index: int, text: str) -> bytes:
        return self._text_event(index, text, partial(self._choice, index)) if text else b""

    def _ready_outputs(self, output: StreamOutput) -> list[tuple[int, StreamOutput]]:
        """Returns the outputs ready to be sent, each with its choice index.

        If prompt logprobs are requested, a prompt's outputs are held back until the logprobs arrive
        with an output of completion 0.
        """
        # The engine generates at least one token, which is dropped if none was requested.
        if self._body.max_tokens == 0:
            reason = output.finish_reason and "length"
            output = output._replace(text="", token_ids=(), logprobs=None, finish_reason=reason)
        number = self._stream.prompt_index[output.request_id]
        first = number * self._n
        if self._wants_prompt_logprobs and number not in self._prompt_logprobs:
            self._pending.setdefault(number, []).append(output)
            if output.prompt_logprobs is None:
                return []
            self._prompt_logprobs[number] = prompt_logprobs_field(
                self._prompts,
                self._prompt_ids[number],
                output.prompt_logprobs,
                self._body.prompt_logprobs,
            )
            if self._body.echo and self._body.logprobs is not None:
                for logprobs in self._logprobs[first : first + self._n]:
                    logprobs.add_prompt(self._prompt_ids[number], output.prompt_logprobs)
            return [(first + ready.index, ready) for ready in self._pending.pop(number)]
        return [(first + output.index, output)]

    def _choice(self, index: int, text: str, ended: ParsedOutput | None = None) -> dict[str, Any]:
        has_logprobs = self._body.logprobs is not None
        choice: dict[str, Any] = {
            "index": index,
            "text": text,
            "logprobs": self._logprobs[index].field if has_logprobs else None,
            "finish_reason": None if ended is None else ended.finish_reason,
        }
        if ended is not None:
            choice["stop_reason"] = ended.stop_reason
        return choice
