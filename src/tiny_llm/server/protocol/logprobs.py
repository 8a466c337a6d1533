"""The log-probabilities of a completion: lists, with a place for each token."""

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from ...engine.scheduling.outputs import StreamOutput
from .prompts import PromptRenderer


def content_logprobs(
    output: StreamOutput, with_end: bool = False
) -> Sequence[tuple[int, Mapping[int, float]]]:
    """A piece's tokens and their log-probabilities.

    Args:
        output: of an answer.
        with_end: whether the token that ended the answer, which is no text, is one of them.
    """
    if output.logprobs is None:
        return []
    pairs = list(zip(output.token_ids, output.logprobs, strict=True))
    if with_end:
        return pairs
    ends = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
    return pairs[:-1] if ends else pairs


class TokenTextDecoder:
    """The texts of an answer's tokens, which joined are the answer's text.

    A character that several tokens share is the text of the last of them; the others have none.

    Args:
        prompts: knows the bytes of tokens.
        as_token_ids: whether ids are told in the place of texts, as in vLLM: `token_id:17`.

    Attributes:
        as_token_ids: as given.
    """

    def __init__(self, prompts: PromptRenderer, as_token_ids: bool = False):
        self.as_token_ids = as_token_ids
        self._prompts = prompts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def decode(self, token: int) -> str:
        """The text of the next token."""
        if self.as_token_ids:
            return f"token_id:{token}"
        return self._decoder.decode(self._prompts.token_bytes(token))

    def peek(self, token: int) -> str:
        """The text of a token that could be the next one."""
        state = self._decoder.getstate()
        text = self.decode(token)
        self._decoder.setstate(state)
        return text

    def logprobs(self, output: StreamOutput, top: int) -> list[dict[str, Any]]:
        """The log-probabilities of a piece, as chats and responses have them."""
        entries = []
        for token, logprobs_by_id in content_logprobs(output, self.as_token_ids):
            pairs = sort_by_logprob(logprobs_by_id)[:top]
            alternatives = [self._entry(self.peek(other), other, own) for other, own in pairs]
            entry = self._entry(self.decode(token), token, logprobs_by_id[token])
            entries.append({**entry, "top_logprobs": alternatives})
        return entries

    def _entry(self, text: str, token: int, logprob: float) -> dict[str, Any]:
        data = list(self._prompts.token_bytes(token))
        return {"token": text, "logprob": clamp_logprob(logprob), "bytes": data}


def clamp_logprob(logprob: float) -> float:
    """A log-probability as JSON can have it, which knows no infinity."""
    return max(logprob, -9999.0)


def sort_by_logprob(logprobs_by_id: Mapping[int, float]) -> list[tuple[int, float]]:
    """Tokens and their log-probabilities, the likeliest first."""
    return sorted(logprobs_by_id.items(), key=lambda pair: (-pair[1], pair[0]))


class CompletionLogprobs:
    """Grows by the tokens of the prompt, if they are asked for, and of the answer.

    Args:
        prompts: knows the texts of tokens.
        top: how many of the likeliest tokens are told with each.
        as_token_ids: whether ids are told in the place of texts.
    """

    def __init__(self, prompts: PromptRenderer, top: int, as_token_ids: bool):
        self._prompts = prompts
        self._top_count = top
        self._texts = TokenTextDecoder(prompts, as_token_ids)
        self._offset = 0
        self.clear()

    def clear(self) -> None:
        """Forgets what was told."""
        self._tokens: list[str] = []
        self._own: list[float | None] = []
        self._top: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def __bool__(self) -> bool:
        """Whether there are tokens that were not told."""
        return bool(self._tokens)

    def take_prompt(
        self, token_ids: Sequence[int], logprobs: Sequence[Mapping[int, float] | None]
    ) -> None:
        """Adds the tokens of the prompt; the first has no log-probability."""
        for token, logprobs_by_id in zip(token_ids, logprobs, strict=True):
            self._add(token, logprobs_by_id)

    def take(self, output: StreamOutput) -> None:
        """Adds the tokens of a piece."""
        for token, logprobs_by_id in content_logprobs(output, self._texts.as_token_ids):
            self._add(token, logprobs_by_id)

    def _add(self, token: int, logprobs_by_id: Mapping[int, float] | None) -> None:
        top: dict[str, float] = {}
        for place, (other, logprob) in enumerate(sort_by_logprob(logprobs_by_id or {})):
            if place < self._top_count or other == token:
                top[self._name(other, token, top)] = clamp_logprob(logprob)
        text = self._texts.decode(token)
        self._tokens.append(text)
        self._own.append(None if logprobs_by_id is None else clamp_logprob(logprobs_by_id[token]))
        self._top.append(None if logprobs_by_id is None else top)
        self._offsets.append(self._offset)
        self._offset += len(text)

    def _name(self, other: int, token: int, taken: Mapping[str, float]) -> str:
        """A likely token's text; where two have the same, one is told by its bytes, as OpenAI does.

        Args:
            other: the likely token.
            token: the one that was chosen, which has its own text.
            taken: texts that others have.
        """
        text = self._texts.peek(other)
        if other == token or (text not in taken and text != self._texts.peek(token)):
            return text
        written = "".join(f"\\x{byte:02x}" for byte in self._prompts.token_bytes(other))
        return f"bytes:{written}"

    def field(self) -> dict[str, Any]:
        """What `logprobs` of a choice is; alternatives contain the token itself, as in vLLM."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._own,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }


def prompt_logprobs_field(
    prompts: PromptRenderer,
    token_ids: Sequence[int],
    scored: Sequence[Mapping[int, float] | None] | None,
    top: int | None,
) -> list[dict[str, Any] | None] | None:
    """vLLM's `prompt_logprobs`: for each token of the prompt, the likeliest and its own by id.

    Args:
        prompts: knows the texts of tokens.
        token_ids: the prompt.
        scored: see `StreamOutput.prompt_logprobs`; the engine may have told more than `top`.
        top: how many were asked for, besides the prompt's own; None for no such field.

    Returns:
        None for the first token, which follows nothing. `rank` is null where it is beyond `top`.
    """
    if scored is None or top is None:
        return None
    return [
        None if logprobs_by_id is None else _ranked(prompts, own, logprobs_by_id, top)
        for own, logprobs_by_id in zip(token_ids, scored, strict=True)
    ]


def _ranked(
    prompts: PromptRenderer, own: int, logprobs_by_id: Mapping[int, float], top: int
) -> dict[str, Any]:
    ranked = list(enumerate(sort_by_logprob(logprobs_by_id), start=1))
    return {
        str(token): {
            "logprob": clamp_logprob(logprob),
            "rank": rank if rank <= top else None,
            "decoded_token": prompts.token_text(token),
        }
        for rank, (token, logprob) in ranked
        if rank <= top or token == own
    }
