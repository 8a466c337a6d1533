"""One answer as a protocol needs it: its parts, its tokens, its log-probabilities."""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..engine_client.messages import OutputDelta
from .output_parser import OutputParser, ParsedDelta, ReasoningDelta, TextDelta, ToolCallDelta
from .prompts import PromptRenderer


@dataclass
class ParsedOutput:
    """Grows by pieces.

    Args:
        parser: splits its text.
        first_tool_call_only: whether tool calls after the first are left out.
        include_reasoning: whether thoughts are told; they are counted in any case.

    Attributes:
        text, reasoning: what it said, and what it thought.
        calls: its tool calls; if they come in pieces, the first of each.
        tokens: how many it has; `reasoning_tokens` of them are thoughts.
        in_content: whether the last piece was a part of the answer itself, not a thought or a tag.
        finish_reason: "stop", "length" or "tool_calls"; None until it ends.
        stop_reason: see `OutputDelta`.
    """

    parser: OutputParser
    first_tool_call_only: bool = False
    include_reasoning: bool = True
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    tokens: int = 0
    reasoning_tokens: int = 0
    in_content: bool = True
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def take(self, output: OutputDelta) -> list[ParsedDelta]:
        """Adds a piece; returns its parts, as far as they are certain."""
        was_thinking = self.parser.in_reasoning
        parts = self.parser.feed(output.text)
        self.in_content = self.parser.in_content and not was_thinking
        self.tokens += len(output.token_ids)
        if was_thinking or self.parser.in_reasoning:
            self.reasoning_tokens += len(output.token_ids)
        if output.finish_reason is not None:
            parts += self.parser.finish()
        taken = [part for part in parts if self._add(part)]
        if output.finish_reason is not None:
            self.stop_reason = output.stop_reason
            called = self.calls and output.finish_reason == "stop"
            self.finish_reason = "tool_calls" if called else output.finish_reason
        return taken

    def _add(self, part: ParsedDelta) -> bool:
        match part:
            case TextDelta(text):
                self.text += text
            case ReasoningDelta() if not self.include_reasoning:
                return False
            case ReasoningDelta(text):
                self.reasoning += text
            case ToolCallDelta():
                if not part.is_new:
                    return part.id == self.calls[-1].id  # it may be of a call that is left out
                if self.calls and self.first_tool_call_only:
                    return False
                self.calls.append(part)
        return True


def content_logprobs(
    output: OutputDelta, with_end: bool = False
) -> list[tuple[int, Mapping[int, float]]]:
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

    def logprobs(self, output: OutputDelta, top: int) -> list[dict[str, Any]]:
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
