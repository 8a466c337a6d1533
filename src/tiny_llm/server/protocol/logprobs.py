"""The log-probabilities of a completion: lists, with a place for each token."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..engine_client.messages import OutputDelta
from .output import TokenTextDecoder, clamp_logprob, content_logprobs, sort_by_logprob
from .prompts import PromptRenderer


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

    def take(self, output: OutputDelta) -> None:
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
        scored: see `seam.OutputDelta.prompt_logprobs`; the engine may have told more than `top`.
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
