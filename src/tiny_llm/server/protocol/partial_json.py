"""Incremental JSON: end of an object, validity of a prefix."""

from pydantic_core import from_json


class JsonObjectScanner:
    """Finds the end of an object in streamed text, reading each character once.

    Precondition: the text starts with `{`.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str) -> int | None:
        """Scans more text; returns the index after the object, None while it is open."""
        for index, character in enumerate(text):
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
                    return index + 1
        return None


def is_json_prefix(text: str) -> bool:
    """Whether a text is JSON or a prefix of JSON."""
    try:
        from_json(text, allow_partial=True, allow_inf_nan=False)
    except ValueError:
        return False
    return True
