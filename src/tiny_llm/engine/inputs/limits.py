"""Limits on clients' JSON before parsing, and on text before tokenization.

Parsing holds the GIL, and Python objects take up to 27 times as much memory as their JSON text.
Counting values and nesting levels in the text takes a few microseconds per kilobyte.

Tokenization takes a second or more per megabyte. Text that looks too long is tokenized in chunks,
until it certainly exceeds the model's context length.
"""

from typing import Any

from ...errors import UserError

MAX_DEPTH = 100  # nesting levels, well below Python's recursion limit of 1000
MAX_VALUES = 2**17  # values, such as token ids; this many take 15 ms to parse and validate
# Objects and lists; this many take 40 ms to validate if each is a Pydantic model.
MAX_CONTAINERS = 2**14
CHUNK_CHARS = 2**16
# Text with fewer characters per token of context is not checked; English averages 4 to 5.
UNCHECKED_CHARS_PER_TOKEN = 8
# Text is rejected only above this many context lengths: chunk boundaries change the count.
MARGIN = 2

_OPENING, _CLOSING = b"[{", b"]}"
_NOT_BRACKETS = bytes(set(range(256)) - set(_OPENING + _CLOSING))


class PromptTooLongError(UserError):
    """A text far beyond the context; `num_tokens` is estimated from its beginning."""

    def __init__(self, message: str, num_tokens: int):
        super().__init__(message)
        self.num_tokens = num_tokens


class JsonLimits:
    """Limits values and nesting levels of JSON documents that arrive in chunks.

    Args:
        what: subject of the error message, for example "the body".
        scale: factor on `MAX_VALUES` and `MAX_CONTAINERS`, which bound the sum over all documents.
        hint: advice at the end of these two limits' error messages.

    Attributes:
        num_values: approximate number of values so far; an empty object or list counts as two.
    """

    def __init__(self, what: str, scale: float = 1.0, hint: str = "send fewer"):
        self._what = what
        self._max_values = int(scale * MAX_VALUES)
        self._max_containers = int(scale * MAX_CONTAINERS)
        self._hint = hint
        self.num_values = 0
        self.num_containers = 0
        self._start_document()

    def _start_document(self) -> None:
        self._depth = 0
        self._in_string = False
        self._backslash = b""  # start of an escape sequence split across chunks

    def check(self, text: str) -> None:
        """Checks a complete document; see `feed` for errors."""
        self._start_document()
        for start in range(0, len(text), CHUNK_CHARS):
            self.feed(text[start : start + CHUNK_CHARS].encode("utf-8", "replace"))

    def feed(self, chunk: bytes) -> None:
        """Checks the next chunk of a document; does not detect invalid JSON.

        Raises:
            UserError: there are too many values, containers or nesting levels.
        """
        unescaped = (self._backslash + chunk).replace(rb"\\", b"")
        self._backslash = unescaped[-1:] if unescaped.endswith(b"\\") else b""
        parts = unescaped.replace(rb"\"", b"").split(b'"')
        structure = b"".join(parts[self._in_string :: 2])  # text outside strings
        self._in_string ^= len(parts) % 2 == 0
        brackets = structure.translate(None, _NOT_BRACKETS)
        num_opening = sum(map(brackets.count, (b"[", b"{")))
        self._check_depth(brackets, num_opening)
        self.num_values += structure.count(b",") + num_opening
        self.num_containers += num_opening
        for num, limit, kind in (
            (self.num_values, self._max_values, "JSON values"),
            (self.num_containers, self._max_containers, "JSON objects and lists"),
        ):
            if num > limit:
                raise UserError(f"{self._what} has more than {limit:,} {kind}; {self._hint}.")

    def _check_depth(self, brackets: bytes, num_opening: int) -> None:
        if self._depth + num_opening > MAX_DEPTH:
            depth = self._depth
            for bracket in brackets:
                depth += 1 if bracket in _OPENING else -1
                if depth > MAX_DEPTH:
                    raise UserError(
                        f"{self._what} is nested more than {MAX_DEPTH} levels deep; flatten it."
                    )
        self._depth += 2 * num_opening - len(brackets)


def encode_text(
    tokenizer: Any, what: str, text: str, max_tokens: int, add_special_tokens: bool = True
) -> list[int]:
    """Encodes text, unless it is far longer than the model's context length.

    Args:
        what: subject of the error message, for example "the prompt".
        max_tokens: the model's context length.

    Raises:
        PromptTooLongError: the text has more than `MARGIN` times `max_tokens` tokens.
        UserError: the text is not valid Unicode, or the tokenizer rejects it.
    """
    check_unicode(what, text)
    if len(text) > max(CHUNK_CHARS, UNCHECKED_CHARS_PER_TOKEN * max_tokens):
        num_tokens = 0
        for start in range(0, len(text), CHUNK_CHARS):
            chunk = text[start : start + CHUNK_CHARS]
            num_tokens += len(tokenizer.encode(chunk, add_special_tokens=False))
            if num_tokens > MARGIN * max_tokens:
                num_chars = start + len(chunk)
                raise PromptTooLongError(
                    f"{what} is too long: the first {num_chars:,} of its {len(text):,} "
                    f"characters are about {num_tokens:,} tokens, but the model's context length "
                    f"is {max_tokens:,} tokens, including the output.",
                    num_tokens * len(text) // num_chars,
                )
    return list(tokenizer.encode(text, add_special_tokens=add_special_tokens))


def check_unicode(what: str, text: str) -> None:
    """Rejects unpaired surrogates, which JSON escapes can produce."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        surrogate = text[error.start]
        raise UserError(
            f"{what} contains {surrogate!r}, an unpaired surrogate; text must be valid Unicode."
        ) from error
