"""Log-probabilities in each protocol's format."""

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.outputs.output_parser import OutputParser
from ...engine.scheduling.request import StreamOutput
from .prompts import PromptRenderer


def content_logprobs(
    output: StreamOutput, with_end: bool = False
) -> Sequence[tuple[int, Mapping[int, float]]]:
    """Tokens and their log-probabilities; `with_end` adds a final EOS or stop token."""
    if output.logprobs is None:
        return []
    pairs = list(zip(output.token_ids, output.logprobs, strict=True))
    if with_end:
        return pairs
    ends = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
    return pairs[:-1] if ends else pairs


class TokenTextDecoder:
    """Decodes tokens one by one; the texts concatenate to the completion's text.

    If a character spans several tokens, the last one gets its text and the others are empty.
    `as_token_ids` returns ids instead, as in vLLM: `token_id:17`.
    """

    def __init__(self, prompts: PromptRenderer, as_token_ids: bool = False):
        self.as_token_ids = as_token_ids
        self._prompts = prompts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.num_characters = 0  # decoded so far

    def decode(self, token: int) -> str:
        text = self._decoder.decode(self._prompts.token_bytes(token))
        self.num_characters += len(text)
        return f"token_id:{token}" if self.as_token_ids else text

    def peek(self, token: int) -> str:
        state = self._decoder.getstate(), self.num_characters
        text = self.decode(token)
        self._decoder.setstate(state[0])
        self.num_characters = state[1]
        return text


class ContentLogprobs:
    """Log-probabilities of the content, in the format of chat completions and responses.

    Tokens are held back until the parser knows where the content starts. Tokens before it,
    reasoning included, have no log-probabilities.
    """

    def __init__(
        self, prompts: PromptRenderer, parser: OutputParser, top: int, as_token_ids: bool = False
    ):
        self._prompts = prompts
        self._parser = parser
        self._top = top
        self._texts = TokenTextDecoder(prompts, as_token_ids)
        # Tokens held back, with the number of characters before and after them.
        self._held: list[tuple[int, int, dict[str, Any]]] = []

    def add(self, output: StreamOutput) -> list[dict[str, Any]]:
        """Returns the entries that are due after the parser has read an output."""
        for token, logprobs_by_id in content_logprobs(output, self._texts.as_token_ids):
            pairs = sort_by_logprob(logprobs_by_id)[: self._top]
            alternatives = [
                self._entry(self._texts.peek(other), other, logprob) for other, logprob in pairs
            ]
            start = self._texts.num_characters
            entry = self._entry(self._texts.decode(token), token, logprobs_by_id[token])
            entry["top_logprobs"] = alternatives
            self._held.append((start, self._texts.num_characters, entry))
        first = self._parser.content_start
        if first is None:
            if self._parser.in_reasoning:  # whatever the parser has read is not content
                self._held = [held for held in self._held if held[1] > self._parser.num_fed]
            return []
        held, self._held = self._held, []
        return [entry for start, end, entry in held if start >= first or end > first]

    def _entry(self, text: str, token: int, logprob: float) -> dict[str, Any]:
        data = list(self._prompts.token_bytes(token))
        return {"token": text, "logprob": clamp_logprob(logprob), "bytes": data}


def clamp_logprob(logprob: float) -> float:
    """Raises −inf to −9999, because JSON has no infinity."""
    return max(logprob, -9999.0)


def sort_by_logprob(logprobs_by_id: Mapping[int, float]) -> list[tuple[int, float]]:
    return sorted(logprobs_by_id.items(), key=lambda pair: (-pair[1], pair[0]))


class CompletionLogprobs:
    """Accumulates a completion's `logprobs`, and with `echo` also the prompt's.

    In `field`, `top_logprobs` has the `top` most likely tokens and the sampled one, as in vLLM.
    `with_end` adds a final EOS or stop token.
    """

    def __init__(self, prompts: PromptRenderer, top: int, as_token_ids: bool, with_end: bool):
        self._prompts = prompts
        self._top_count = top
        self._with_end = with_end
        self._texts = TokenTextDecoder(prompts, as_token_ids)
        self._offset = 0
        self.clear()

    def clear(self) -> None:
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        self.field: dict[str, list[Any]] = {name: [] for name in names}

    def __bool__(self) -> bool:
        return bool(self.field["tokens"])

    def add_prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, float] | None]
    ) -> None:
        for token, logprobs_by_id in zip(token_ids, logprobs, strict=True):
            self._add(token, logprobs_by_id)

    def add(self, output: StreamOutput) -> None:
        for token, logprobs_by_id in content_logprobs(output, self._with_end):
            self._add(token, logprobs_by_id)

    def _add(self, token: int, logprobs_by_id: Mapping[int, float] | None) -> None:
        top: dict[str, float] = {}
        for rank, (other, logprob) in enumerate(sort_by_logprob(logprobs_by_id or {})):
            if rank < self._top_count or other == token:
                top[self._name(other, token, top)] = clamp_logprob(logprob)
        text = self._texts.decode(token)
        sampled = None if logprobs_by_id is None else clamp_logprob(logprobs_by_id[token])
        self.field["tokens"].append(text)
        self.field["token_logprobs"].append(sampled)
        self.field["top_logprobs"].append(None if logprobs_by_id is None else top)
        self.field["text_offset"].append(self._offset)
        self._offset += len(text)

    def _name(self, other: int, token: int, taken: Mapping[str, float]) -> str:
        """Key for `other` in `top_logprobs`: its text or, if taken, its bytes.

        OpenAI's API does the same. The sampled `token` always keeps its text.
        """
        text = self._texts.peek(other)
        if other == token or (text not in taken and text != self._texts.peek(token)):
            return text
        escaped = "".join(f"\\x{byte:02x}" for byte in self._prompts.token_bytes(other))
        return f"bytes:{escaped}"


def prompt_logprobs_field(
    prompts: PromptRenderer,
    token_ids: Sequence[int],
    scored: Sequence[Mapping[int, float] | None] | None,
    top: int | None,
) -> list[dict[str, Any] | None] | None:
    """vLLM's `prompt_logprobs`: per position, top tokens and the prompt's token.

    The first token has none. `rank` is null for a prompt token that is not among the `top` ones.

    Args:
        scored: `StreamOutput.prompt_logprobs`; may hold more than `top` tokens per position.
        top: requested number of most likely tokens; None if not requested.
    """
    if scored is None or top is None:
        return None
    return [
        None if logprobs_by_id is None else _ranked(prompts, token, logprobs_by_id, top)
        for token, logprobs_by_id in zip(token_ids, scored, strict=True)
    ]


def _ranked(
    prompts: PromptRenderer, actual: int, logprobs_by_id: Mapping[int, float], top: int
) -> dict[str, Any]:
    ranked = list(enumerate(sort_by_logprob(logprobs_by_id), start=1))
    return {
        str(token): {
            "logprob": clamp_logprob(logprob),
            "rank": rank if rank <= top else None,
            "decoded_token": prompts.token_text(token),
        }
        for rank, (token, logprob) in ranked
        if rank <= top or token == actual
    }
