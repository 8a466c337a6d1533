"""Texts that a command is given as an argument or on standard input: UTF-8, or refused."""

import io
import sys
from typing import TextIO

from ...errors import UserError


def read_prompt(argument: str) -> str:
    """The prompt that `--prompt` means: all of standard input for "-", else the argument itself.

    Raises:
        UserError: it is not UTF-8.
    """
    if argument != "-":
        return validate_utf8("the prompt", argument)
    stream = sys.stdin
    # Bytes if there are any: the locale of the terminal may be another encoding's.
    given = stream.buffer.read() if hasattr(stream, "buffer") else stream.read().encode()
    try:
        return given.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"the prompt is not UTF-8: byte {error.start} is 0x{given[error.start]:02x}; convert "
            "it, with iconv for example."
        ) from error


def validate_utf8(what: str, text: str) -> str:
    """The same text; Python keeps bytes of the command line that are not UTF-8 as surrogates.

    Raises:
        UserError: it has such bytes.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{what} is not UTF-8 at character {error.start}; convert it, with iconv for example."
        ) from error
    return text


def reconfigure_as_utf8(stream: TextIO) -> None:
    """From now on a stream is UTF-8 whatever the locale says; `validate_utf8` finds what is not."""
    if isinstance(stream, io.TextIOWrapper):  # a test's may be another
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")
