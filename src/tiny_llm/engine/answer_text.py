"""From an answer's tokens to its text, up to a stop string.

Two things are held back and not shown yet: bytes that are not a whole character (the detokenizer
does that), and text that may turn out to be the beginning of a stop string. So what was shown is
never taken back. Knows nothing of models or MLX.
"""

from collections.abc import Sequence
from typing import Any


class AnswerText:
    """The text of one answer.

    Args:
        detokenizer: fresh, as `mlx_lm`'s tokenizers give them: `add_token`, `finalize`,
            `last_segment`.
        stop_strings: the first that the text contains ends it.

    Attributes:
        text: the answer so far, with what is held back; without the stop string once it is found.
        stop_string: the one that was found, or None.
    """

    def __init__(self, detokenizer: Any, stop_strings: Sequence[str] = ()):
        self.text = ""
        self.stop_string: str | None = None
        self._detokenizer = detokenizer
        self._stop_strings = tuple(stop_strings)
        self._longest = max(map(len, self._stop_strings), default=0)
        self._num_shown = 0
        self._is_final = False

    def add_token(self, token: int) -> bool:
        """Takes the next token; whether a stop string is complete now."""
        self._detokenizer.add_token(token)
        return self._append(self._detokenizer.last_segment)

    def finish(self) -> None:
        """Nothing more comes: what was held back is part of the answer."""
        if self.stop_string is None and not self._is_final:
            self._detokenizer.finalize()
            self._append(self._detokenizer.last_segment)
        self._is_final = True

    def take_new(self) -> str:
        """What can be shown since the last call."""
        end = len(self.text) if self._is_final or self.stop_string else self._num_safe()
        new = self.text[self._num_shown : end]
        self._num_shown += len(new)
        return new

    def _append(self, piece: str) -> bool:
        if not piece:
            return False
        # A stop string that is new ends in the new piece, so it began at most this far back.
        start = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        found = [
            (place, stop)
            for stop in self._stop_strings
            if (place := self.text.find(stop, start)) >= 0
        ]
        if not found:
            return False
        place, self.stop_string = min(found)
        self.text = self.text[:place]
        return True

    def _num_safe(self) -> int:
        """How much of the text can be no part of a stop string that is still to come."""
        first = max(0, len(self.text) - self._longest + 1)
        for place in range(first, len(self.text)):
            if any(stop.startswith(self.text[place:]) for stop in self._stop_strings):
                return place
        return len(self.text)
