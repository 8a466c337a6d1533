"""One answer as a protocol needs it: its parts, its tokens, its log-probabilities."""

from dataclasses import dataclass, field

from ...engine.scheduling.outputs import StreamOutput
from .output_parser import OutputParser, ParsedDelta, ReasoningDelta, TextDelta, ToolCallDelta


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
        stop_reason: see `StreamOutput`.
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

    def take(self, output: StreamOutput) -> list[ParsedDelta]:
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
