"""JSON whose text comes in pieces: where an object ends, and whether it can still become JSON."""

from pydantic_core import from_json


class JsonObjectScanner:
    """Looks for the end of an object. It reads each character once, however the text is cut.

    The text begins with `{`.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Takes more text; returns the place after the object in it, None while it is open."""
        for place, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character == "{":
                self._depth += 1
            elif character == "}":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1
        return None


def is_json_prefix(text: str) -> bool:
    """Whether a text is JSON, or the beginning of it."""
    try:
        from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return False
    return True
