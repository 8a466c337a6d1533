"""StopChecker: incremental detokenization with stop strings.

Text is held back while it may be incomplete or retracted: partial characters, which the detokenizer
buffers, and possible prefixes of a stop string. Emitted text is therefore final. Plain Python: no
models, no MLX.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .scheduling.outputs import CompletionOutput


@dataclass(frozen=True)
class ReasoningTokens:
    """Delimiters of a reasoning block.

    Attributes:
        start, end: token ids of `<think>` and `</think>`.
        is_open: whether the output starts inside a reasoning block.
    """

    start: int
    end: int
    is_open: bool


class StopChecker:
    """Detokenizes one completion until a stop string occurs.

    Args:
        output: receives `text` and, on a match, `stop_reason`.
        detokenizer: a new `mlx_lm` streaming detokenizer: `add_token`, `finalize`,
            `last_segment`.
        stop_strings: strings that end the text; the earliest match wins.
        min_tokens: stop strings that start within the first `min_tokens` tokens are ignored.
        include_stop_str: whether the matched stop string is kept in the text.
        reasoning: delimiters of reasoning, inside which stop strings are ignored; None if the model
            does not reason.
    """

    def __init__(
        self,
        output: CompletionOutput,
        detokenizer: Any,
        stop_strings: Sequence[str],
        min_tokens: int = 0,
        include_stop_str: bool = False,
        reasoning: ReasoningTokens | None = None,
    ):
        self._output = output
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._include_stop_str = include_stop_str
        self._longest = max(map(len, stop_strings), default=0)
        self._buffer = ""  # text after `output.text`
        self._num_unchecked = 0  # leading characters of `_buffer` exempt from stop strings
        self._num_min_tokens_left = min_tokens  # upcoming tokens exempt from stop strings
        self._reasoning = reasoning
        self._in_reasoning = reasoning is not None and reasoning.is_open
        self._finished = False

    def add_token(self, token: int) -> bool:
        """Appends a token; returns whether it completes a stop string."""
        is_exempt = self._is_reasoning(token) or self._num_min_tokens_left > 0
        self._detokenizer.add_token(token)
        stop_string = self._append(self._detokenizer.last_segment, is_exempt)
        self._num_min_tokens_left = max(0, self._num_min_tokens_left - 1)
        if is_exempt:
            self._num_unchecked = len(self._buffer)
        if stop_string is not None:
            self._output.stop_reason = stop_string
        return stop_string is not None

    def finish(self) -> None:
        """Ends the completion; held-back text is emitted as is."""
        if not self._finished:
            self._detokenizer.finalize()
            self._append(self._detokenizer.last_segment, self._in_reasoning)
            self._finished = True

    def take_text(self) -> str:
        """Moves the buffer's emittable prefix to the output and returns it."""
        end = len(self._buffer) if self._finished else self._num_emittable()
        new, self._buffer = self._buffer[:end], self._buffer[end:]
        self._num_unchecked = max(0, self._num_unchecked - end)
        self._output.text += new
        return new

    def _is_reasoning(self, token: int) -> bool:
        """Whether the next token is part of the reasoning, including delimiters."""
        if self._reasoning is None:
            return False
        if self._in_reasoning:
            self._in_reasoning = token != self._reasoning.end
            return True
        # `<think>` is a delimiter only at the very start.
        if token == self._reasoning.start and not (self._output.text + self._buffer).strip():
            self._in_reasoning = True
        return self._in_reasoning

    def _append(self, text: str, is_exempt: bool) -> str | None:
        """Appends text up to a stop string; returns the stop string, or None.

        Args:
            text: new text.
            is_exempt: whether stop strings are ignored in it.
        """
        self._buffer += text
        if is_exempt:
            return None
        candidates = [
            (self._buffer.find(stop, self._num_unchecked), stop) for stop in self._stop_strings
        ]
        matches = [(start, stop) for start, stop in candidates if start >= 0]
        if not matches:
            return None
        start, stop_string = min(matches)
        self._buffer = self._buffer[: start + len(stop_string) * self._include_stop_str]
        self._finished = True
        return stop_string

    def _num_emittable(self) -> int:
        """Number of leading characters that cannot be part of a later stop string match."""
        first = max(self._num_unchecked, len(self._buffer) - self._longest + 1)
        for start in range(first, len(self._buffer)):
            if any(stop.startswith(self._buffer[start:]) for stop in self._stop_strings):
                return start
        return len(self._buffer)
