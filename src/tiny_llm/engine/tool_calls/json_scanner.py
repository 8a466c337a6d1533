"""Incremental JSON scanner: finds a value's end and validates prefixes."""

import re

SPACE = " \t\n\r"
# Matches every prefix of a number.
NUMBER_PREFIX = re.compile(r"-?((0|[1-9]\d*)(\.\d*|(\.\d+)?[eE][+-]?\d*)?)?")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
LITERALS = ("true", "false", "null")
HEX_DIGITS = "0123456789abcdefABCDEF"


class JsonScanner:
    """Validates a streamed JSON object or array, reading each character once."""

    def __init__(self) -> None:
        self._open: list[str] = []  # brackets of open objects and arrays, innermost last
        # "value", "key", "colon", "next" (a comma or the closing bracket), "value or end" and "key
        # or end" (after an opening bracket); or the token being read: see `_advance`.
        self._expected = "value"
        self._after_escape = ""  # value to restore `_expected` to after an escape sequence
        self._token = ""  # incomplete number, literal or escape sequence

    @property
    def depth(self) -> int:
        return len(self._open)

    def feed(self, text: str, until_depth: int = 0) -> tuple[int, bool]:
        """Scans more text, up to the end of the value or the first invalid character.

        Args:
            until_depth: a closing bracket that returns to this depth ends the scan.

        Returns:
            (number of valid characters, whether the scan reached the end).
        """
        for index, character in enumerate(text):
            if not self._advance(character):
                return index, False
            if character in "}]" and self._expected == "next" and self.depth == until_depth:
                return index + 1, True
        return len(text), False

    def _advance(self, character: str) -> bool:
        """Reads a character; returns whether it is valid."""
        match self._expected:
            case "string" | "key string":
                return self._advance_string(character)
            case "escape":
                return self._advance_escape(character)
            case "number":
                return self._advance_number(character)
            case "literal":
                return self._advance_literal(character)
        return character in SPACE or self._advance_structure(character)

    def _advance_structure(self, character: str) -> bool:
        """Reads a bracket, comma, colon, or the first character of a key or value."""
        # [task 5.4.1 structure]
        match self._expected:
            case "key" | "key or end" if character == '"':
                self._expected = "key string"
            case "colon" if character == ":":
                self._expected = "value"
            case "next" if character == "," and self._open:
                self._expected = "key" if self._open[-1] == "{" else "value"
            case "key or end" | "next" if character == "}":
                return self._close("{")
            case "value or end" | "next" if character == "]":
                return self._close("[")
            case "value" | "value or end":
                return self._start_value(character)
            case _:
                return False
        return True
        # [/task 5.4.1 structure]

    def _start_value(self, character: str) -> bool:
        if character in "{[":
            self._open.append(character)
            self._expected = "key or end" if character == "{" else "value or end"
        elif character == '"':
            self._expected = "string"
        elif character in "-0123456789":
            self._token, self._expected = character, "number"
        elif character in "tfn":
            self._token, self._expected = character, "literal"
        else:
            return False
        return True

    def _advance_string(self, character: str) -> bool:
        if character == '"':
            self._expected = "colon" if self._expected == "key string" else "next"
        elif character == "\\":
            self._token, self._after_escape, self._expected = "", self._expected, "escape"
        return character >= " "

    def _advance_escape(self, character: str) -> bool:
        self._token += character
        if self._token[0] != "u":
            self._expected = self._after_escape
            return character in '"\\/bfnrt'
        if len(self._token) == 5:
            self._expected = self._after_escape
        return self._token == "u" or character in HEX_DIGITS

    def _advance_literal(self, character: str) -> bool:
        self._token += character
        if self._token in LITERALS:
            self._expected = "next"
        return any(literal.startswith(self._token) for literal in LITERALS)

    def _advance_number(self, character: str) -> bool:
        if character in "0123456789+-.eE":
            self._token += character
            return NUMBER_PREFIX.fullmatch(self._token) is not None
        if not NUMBER.fullmatch(self._token):
            return False
        self._expected = "next"
        return self._advance(character)

    def _close(self, bracket: str) -> bool:
        """Closes the innermost object or array; returns whether `bracket` opened it."""
        # [task 5.4.1 close]
        self._expected = "next"
        return bool(self._open) and self._open.pop() == bracket
        # [/task 5.4.1 close]
