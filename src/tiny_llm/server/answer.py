"""One answer as a protocol needs it: its parts, its tokens, its log-probabilities."""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .answer_parser import AnswerParser, Part, Said, Thought, ToolCall
from .prompts import Prompts
from .seam import Piece


@dataclass
class Answer:
    """Grows by pieces.

    Args:
        parser: splits its text.
        one_call: whether tool calls after the first are left out.
        tells_thoughts: whether thoughts are told; they are counted in any case.

    Attributes:
        text, thought: what it said, and what it thought.
        calls: its tool calls; if they come in pieces, the first of each.
        tokens: how many it has; `thinking_tokens` of them are thoughts.
        in_answer: whether the last piece was a part of the answer itself, not a thought or a tag.
        finish_reason: "stop", "length" or "tool_calls"; None until it ends.
        stop_reason: see `Piece`.
    """

    parser: AnswerParser
    one_call: bool = False
    tells_thoughts: bool = True
    text: str = ""
    thought: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    tokens: int = 0
    thinking_tokens: int = 0
    in_answer: bool = True
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def take(self, piece: Piece) -> list[Part]:
        """Adds a piece; returns its parts, as far as they are certain."""
        was_thinking = self.parser.is_thinking
        parts = self.parser.feed(piece.text)
        self.in_answer = self.parser.is_answering and not was_thinking
        self.tokens += len(piece.token_ids)
        if was_thinking or self.parser.is_thinking:
            self.thinking_tokens += len(piece.token_ids)
        if piece.finish_reason is not None:
            parts += self.parser.finish()
        taken = [part for part in parts if self._add(part)]
        if piece.finish_reason is not None:
            self.stop_reason = piece.stop_reason
            called = self.calls and piece.finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else piece.finish_reason
        return taken

    def _add(self, part: Part) -> bool:
        match part:
            case Said(text):
                self.text += text
            case Thought() if not self.tells_thoughts:
                return False
            case Thought(text):
                self.thought += text
            case ToolCall():
                if not part.is_new:
                    return part.id == self.calls[-1].id  # it may be of a call that is left out
                if self.calls and self.one_call:
                    return False
                self.calls.append(part)
        return True


def text_tokens(piece: Piece, with_end: bool = False) -> list[tuple[int, Mapping[int, float]]]:
    """A piece's tokens and their log-probabilities.

    Args:
        piece: of an answer.
        with_end: whether the token that ended the answer, which is no text, is one of them.
    """
    if piece.logprobs is None:
        return []
    pairs = list(zip(piece.token_ids, piece.logprobs, strict=True))
    if with_end:
        return pairs
    ends = piece.finish_reason == "stop" and not isinstance(piece.stop_reason, str)
    return pairs[:-1] if ends else pairs


class TokenTexts:
    """The texts of an answer's tokens, which joined are the answer's text.

    A character that several tokens share is the text of the last of them; the others have none.

    Args:
        prompts: knows the bytes of tokens.
        as_ids: whether ids are told in the place of texts, as in vLLM: `token_id:17`.

    Attributes:
        as_ids: as given.
    """

    def __init__(self, prompts: Prompts, as_ids: bool = False):
        self.as_ids = as_ids
        self._prompts = prompts
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, token: int) -> str:
        """The text of the next token."""
        if self.as_ids:
            return f"token_id:{token}"
        return self._decoder.decode(self._prompts.token_bytes(token))

    def would_be(self, token: int) -> str:
        """The text of a token that could be the next one."""
        state = self._decoder.getstate()
        text = self.take(token)
        self._decoder.setstate(state)
        return text

    def logprobs(self, piece: Piece, top: int) -> list[dict[str, Any]]:
        """The log-probabilities of a piece, as chats and responses have them."""
        entries = []
        for token, likely in text_tokens(piece, self.as_ids):
            pairs = likeliest(likely)[:top]
            alternatives = [self._entry(self.would_be(other), other, own) for other, own in pairs]
            entry = self._entry(self.take(token), token, likely[token])
            entries.append({**entry, "top_logprobs": alternatives})
        return entries

    def _entry(self, text: str, token: int, logprob: float) -> dict[str, Any]:
        data = list(self._prompts.token_bytes(token))
        return {"token": text, "logprob": finite(logprob), "bytes": data}


def finite(logprob: float) -> float:
    """A log-probability as JSON can have it, which knows no infinity."""
    return max(logprob, -9999.0)


def likeliest(likely: Mapping[int, float]) -> list[tuple[int, float]]:
    """Tokens and their log-probabilities, the likeliest first."""
    return sorted(likely.items(), key=lambda pair: (-pair[1], pair[0]))
