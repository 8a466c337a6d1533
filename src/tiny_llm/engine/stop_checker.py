"""StopChecker: incremental detokenization with stop strings.

Text is held back while it may be incomplete or retracted: partial characters, which the detokenizer
buffers, and possible prefixes of a stop string. Emitted text is therefore final. Plain Python: no
models, no MLX.
"""

from collections.abc import Sequence
from typing import Any

from .scheduling.outputs import CompletionOutput


class StopChecker:
    """Detokenizes one completion until a stop string occurs.

    Args:
        output: receives `text` and, on a match, `stop_reason`.
        detokenizer: a new streaming detokenizer of `mlx_lm`: `add_token`, `finalize`,
            `last_segment`.
        stop_strings: strings that end the text; the earliest match wins.
        min_tokens: stop strings that start within the text of these first tokens are ignored.
        include_stop_str: whether the matched stop string is kept in the text.
    """

    def __init__(
        self,
        output: CompletionOutput,
        detokenizer: Any,
        stop_strings: Sequence[str],
        min_tokens: int = 0,
        include_stop_str: bool = False,
    ):
        self._output = output
        self._detokenizer = detokenizer
        self._stop_strings = stop_strings
        self._include_stop_str = include_stop_str
        self._longest = max(map(len, stop_strings), default=0)
        self._buffer = ""  # text after `output.text`
        self._num_unchecked = 0  # leading characters of `_buffer` exempt from stop strings
        self._num_min_tokens_left = min_tokens  # next tokens whose text is exempt
        self._finished = False

    def add_token(self, token: int) -> bool:
        """Appends a token; returns whether it completes a stop string."""
        self._detokenizer.add_token(token)
        stop_string = self._append(self._detokenizer.last_segment)
        if self._num_min_tokens_left > 0:
            self._num_min_tokens_left -= 1
            self._num_unchecked = len(self._buffer)
        if stop_string is not None:
            self._output.stop_reason = stop_string
        return stop_string is not None

    def finish(self) -> None:
        """Ends the text; held-back text becomes part of it."""
        if not self._finished:
            self._detokenizer.finalize()
            self._append(self._detokenizer.last_segment)
            self._finished = True

    def take_text(self) -> str:
        """Appends the final part of the buffer to the output and returns it."""
        end = len(self._buffer) if self._finished else self._num_emittable()
        new, self._buffer = self._buffer[:end], self._buffer[end:]
        self._num_unchecked = max(0, self._num_unchecked - end)
        self._output.text += new
        return new

    def _append(self, text: str) -> str | None:
        """Appends text up to a stop string; returns the stop string, or None."""
        self._buffer += text
        if self._num_min_tokens_left > 0:
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
