"""The log-probabilities of a completion: lists, with a place for each token."""

from collections.abc import Mapping, Sequence
from typing import Any

from .answer import TokenTexts, finite, likeliest, text_tokens
from .prompts import Prompts
from .seam import Piece


class TextLogprobs:
    """Grows by the tokens of the prompt, if they are asked for, and of the answer.

    Args:
        prompts: knows the texts of tokens.
    """

    def __init__(self, prompts: Prompts):
        self._texts = TokenTexts(prompts)
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
        for token, likely in zip(token_ids, logprobs, strict=True):
            self._add(token, likely)

    def take(self, piece: Piece) -> None:
        """Adds the tokens of a piece."""
        for token, likely in text_tokens(piece):
            self._add(token, likely)

    def _add(self, token: int, likely: Mapping[int, float] | None) -> None:
        top: dict[str, float] = {}
        for other, logprob in likeliest(likely or {}):
            top.setdefault(self._texts.would_be(other), finite(logprob))
        text = self._texts.take(token)
        self._tokens.append(text)
        self._own.append(None if likely is None else finite(likely[token]))
        self._top.append(None if likely is None else top)
        self._offsets.append(self._offset)
        self._offset += len(text)

    def field(self) -> dict[str, Any]:
        """What `logprobs` of a choice is; alternatives contain the token itself, as in vLLM."""
        return {
            "tokens": self._tokens,
            "token_logprobs": self._own,
            "top_logprobs": self._top,
            "text_offset": self._offsets,
        }
