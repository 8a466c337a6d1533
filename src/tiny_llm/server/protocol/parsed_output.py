"""ParsedOutput: a completion's reasoning, content and tool calls."""

from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Any

from ...engine.scheduling.outputs import StreamOutput
from .output_parser import OutputParser, ParsedDelta, ReasoningDelta, TextDelta
from .tool_calls import ToolCallDelta


@dataclass
class ParsedOutput:
    """A completion, accumulated from stream outputs.

    Args:
        include_reasoning: whether to return reasoning; its tokens are counted either way.

    Attributes:
        calls: tool calls; for each streamed call, its first delta.
        tokens: number of tokens, of which `reasoning_tokens` are in the reasoning.
        finish_reason: "stop", "length" or "tool_calls"; None until the end.
    """

    parser: OutputParser
    first_tool_call_only: bool = False
    include_reasoning: bool = True
    text: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    tokens: int = 0
    reasoning_tokens: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def add(self, output: StreamOutput) -> list[ParsedDelta]:
        """Adds an output; returns the deltas, without text that is held back."""
        was_thinking = self.parser.in_reasoning
        deltas = self.parser.feed(output.text)
        self.tokens += len(output.token_ids)
        if was_thinking or self.parser.in_reasoning:
            self.reasoning_tokens += len(output.token_ids)
        if output.finish_reason is not None:
            at_stop_string = isinstance(output.stop_reason, str)
            deltas += self.parser.finish(output.finish_reason != "stop" or at_stop_string)
        deltas = [delta for delta in deltas if self._add(delta)]
        if output.finish_reason is not None:
            self.stop_reason = output.stop_reason
            is_complete = output.finish_reason == "stop" and not self.parser.has_incomplete_call
            self.finish_reason = (
                "tool_calls" if self.calls and is_complete else output.finish_reason
            )
        return deltas

    def _add(self, delta: ParsedDelta) -> bool:
        match delta:
            case TextDelta(text):
                self.text += text
            case ReasoningDelta() if not self.include_reasoning:
                return False
            case ReasoningDelta(text):
                self.reasoning += text
            case ToolCallDelta():
                if not delta.is_new:
                    # The later deltas of a dropped call have an id that is not in `calls`.
                    is_last = delta.id == self.calls[-1].id
                    self.arguments[-1] += delta.arguments if is_last else ""
                    return is_last
                if self.calls and self.first_tool_call_only:
                    return False
                self.calls.append(delta)
                self.arguments.append(delta.arguments)
        return True


def encode_reasoning(reasoning: str) -> str:
    """Encodes reasoning for clients to send back, in Base64 and without encryption."""
    return b64encode(reasoning.encode("utf-8", "replace")).decode()


def decode_reasoning(content: Any) -> str:
    """Decodes `encode_reasoning`'s result; returns "" for other servers' values."""
    try:
        return b64decode(content, validate=True).decode()
    except (TypeError, ValueError):
        return ""
