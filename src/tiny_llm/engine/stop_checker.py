"""From an answer's tokens to its text, up to a stop string.

Two kinds of text are held back: bytes that are not a whole character yet, which the detokenizer
keeps, and text that may turn out to be the beginning of a stop string. So text that was shown never
has to be taken back. This file knows nothing of models or MLX.
"""

from collections.abc import Sequence
from typing import Any

from .scheduling.outputs import CompletionOutput


class StopChecker:
    """Writes the text of one answer.

    Args:
        output: its `text` grows by what can be shown, and its `stop_reason` becomes the stop string
            that was found.
        detokenizer: a fresh one, as `mlx_lm`'s tokenizers give them: `add_token`, `finalize`,
            `last_segment`.
        stop_strings: the first of them that the text contains ends it.
        min_tokens: a stop string counts if it begins after the text of so many tokens.
        include_stop_str: whether the stop string that was found is a part of the text.
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
        self._buffer = ""  # follows `output.text`
        self._num_unchecked = 0  # characters of `_buffer` in which no stop string may begin
        self._num_min_tokens_left = min_tokens  # tokens to come whose text is exempt
        self._finished = False

    def add_token(self, token: int) -> bool:
        """Takes the next token; returns whether it completes a stop string."""
        self._detokenizer.add_token(token)
        stop_string = self._append(self._detokenizer.last_segment)
        if self._num_min_tokens_left > 0:
            self._num_min_tokens_left -= 1
            self._num_unchecked = len(self._buffer)
        if stop_string is not None:
            self._output.stop_reason = stop_string
        return stop_string is not None

    def finish(self) -> None:
        """Ends the answer: the text that was held back is part of it."""
        if not self._finished:
            self._detokenizer.finalize()
            self._append(self._detokenizer.last_segment)
            self._finished = True

    def take_text(self) -> str:
        """Adds the text that can be shown to the output, and returns it."""
        end = len(self._buffer) if self._finished else self._num_emittable()
        new, self._buffer = self._buffer[:end], self._buffer[end:]
        self._num_unchecked = max(0, self._num_unchecked - end)
        self._output.text += new
        return new

    def _append(self, piece: str) -> str | None:
        """Adds text, up to a stop string; returns that."""
        self._buffer += piece
        if self._num_min_tokens_left > 0:
            return None
        places = [
            (self._buffer.find(stop, self._num_unchecked), stop) for stop in self._stop_strings
        ]
        found = [(place, stop) for place, stop in places if place >= 0]
        if not found:
            return None
        place, stop_string = min(found)
        self._buffer = self._buffer[: place + len(stop_string) * self._include_stop_str]
        self._finished = True
        return stop_string

    def _num_emittable(self) -> int:
        """How many characters cannot be part of a stop string that is still to come."""
        first = max(self._num_unchecked, len(self._buffer) - self._longest + 1)
        for place in range(first, len(self._buffer)):
            if any(stop.startswith(self._buffer[place:]) for stop in self._stop_strings):
                return place
        return len(self._buffer)
