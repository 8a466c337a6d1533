"""UTF-8 validation of arguments and standard input."""

import io
import sys
from typing import TextIO

from ...errors import UserError


def read_prompt(argument: str) -> str:
    """Resolves `--prompt`: all of standard input for "-", else the argument."""
    if argument != "-":
        return validate_utf8("the prompt", argument)
    stream = sys.stdin
    # Read raw bytes, because the locale's encoding may not be UTF-8.
    data = stream.buffer.read() if hasattr(stream, "buffer") else stream.read().encode()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}; convert "
            "it, e.g. with iconv."
        ) from error


def validate_utf8(what: str, text: str) -> str:
    """Returns the text; rejects surrogates, which stand for non-UTF-8 bytes."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} is not UTF-8 at character {error.start}; convert it, e.g. with iconv."
        ) from error
    return text


def reconfigure_as_utf8(stream: TextIO) -> None:
    """Sets a stream's encoding to UTF-8; invalid bytes become surrogates."""
    if isinstance(stream, io.TextIOWrapper):  # not a StringIO, which tests use
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")
