"""Bounded reads of checkpoint files.

Checkpoints are untrusted. Only regular files, named without directories, are read, up to a size
limit that no real checkpoint reaches.
"""

import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from ...errors import UserError, short_repr

# Also limits memory: parsed objects take up to 25 times as much as their JSON.
MAX_JSON_BYTES = 5_000_000
MAX_TEXT_BYTES = 1_000_000
MAX_TOKENIZER_BYTES = 50_000_000  # Gemma 3's file is 33 MB
MAX_NAME_CHARS = 255


class ModelError(UserError):
    """The model cannot be found, downloaded or loaded."""


@contextmanager
def model_errors(failure: str, *kinds: type[Exception]) -> Iterator[None]:
    """Context manager that converts the block's ValueErrors to `ModelError`.

    Args:
        failure: start of the message, for example "the model in /models/a cannot be loaded".
        kinds: other exception types to convert.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ModelError) or not isinstance(error, (ValueError, *kinds)):
            raise
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"{failure}: {reason}.") from error


def resolve_file(folder: Path, name: str) -> Path:
    """Path of a regular file in a checkpoint's folder.

    Follows symbolic links, because the hub cache uses them. No repository file is downloaded as a
    link, so this is safe.

    Raises:
        ModelError: the name contains directories, or the file is missing or not a regular file.
    """
    check_file_name(folder, name)
    file = folder / name
    try:
        target = file.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{file} is missing or cannot be opened; copy it to this path.") from error
    if not target.is_file():
        raise _not_regular(file)
    return file


def open_regular(file: Path) -> BinaryIO:
    """Opens a regular file for reading; neither opening nor reading blocks.

    Raises:
        ModelError: the file is not a regular file.
        OSError: the file cannot be opened.
    """
    return open(file, "rb", opener=_open_nonblocking)


def _open_nonblocking(name: str, flags: int) -> int:
    descriptor = os.open(name, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _not_regular(name)
    return descriptor


def _not_regular(file: Path | str) -> ModelError:
    return ModelError(f"{file} is not a regular file; replace it with one.")


def check_file_name(folder: Path, name: str) -> None:
    """Raises ModelError unless `is_plain_file_name(name)`."""
    if not is_plain_file_name(name):
        raise ModelError(
            f"{folder} refers to the file {short_repr(name)}, expected a file name without "
            "directories; download the model again."
        )


def is_plain_file_name(name: str) -> bool:
    """Whether a string is a printable file name without directories."""
    return (
        0 < len(name) <= MAX_NAME_CHARS and name == Path(name).name != ".." and name.isprintable()
    )


def read_limited(folder: Path, name: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Reads a text file from a checkpoint.

    Raises:
        ModelError: the file is unreadable or not UTF-8; see also `check_file`.
    """
    file = folder / name
    size = check_file(folder, name, max_bytes)
    try:
        with open_regular(file) as stream:
            content = stream.read(size) or b""  # None if the read would block
        return content.decode("utf-8")
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{file} cannot be read: byte {error.start} is not UTF-8; download it again."
        ) from error


def check_file(folder: Path, name: str, max_bytes: int) -> int:
    """Checks a file's name, type and size; returns its size, 0 for /proc files.

    Raises:
        ModelError: the file is too large; see also `resolve_file`.
    """
    file = resolve_file(folder, name)
    size = file.stat().st_size
    if size > max_bytes:
        raise ModelError(
            f"{file} has {size:,} bytes, expected at most {max_bytes:,}; download it again."
        )
    return size


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Reads a required JSON object from a checkpoint.

    Raises:
        ModelError: the file is missing or is not a JSON object; see also `read_limited`.
    """
    if not (folder / name).exists():
        raise ModelError(f"{folder} has no {name}; it is not a model folder.")
    return parse_json_object(folder / name, read_limited(folder, name, MAX_JSON_BYTES))


def parse_json_object(file: Path, text: str) -> dict[str, Any]:
    """Parses a file's text; ModelError if it is not a JSON object."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ModelError(f"{file} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} is not a JSON object.")
    return content


def parse_json(text: str) -> Any:
    """Parses JSON; ValueError also for duplicate keys and unpaired surrogates."""
    try:
        content = json.loads(text, object_pairs_hook=_reject_duplicate_keys)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(content, ensure_ascii=False).encode()
        return content
    except json.JSONDecodeError as error:
        raise ValueError(
            f"invalid JSON at line {error.lineno}, column {error.colno} ({error.msg})"
        ) from error
    except RecursionError as error:
        raise ValueError("its JSON is nested too deeply") from error
    except _DuplicateKeyError as error:
        raise ValueError(f"an object has the key {error} twice") from error
    except UnicodeEncodeError as error:
        raise ValueError("a string has an unpaired surrogate") from error
    except ValueError as error:  # Python rejects integers of more than 4300 digits
        raise ValueError("a number has thousands of digits") from error


class _DuplicateKeyError(Exception):
    """Duplicate key in a JSON object; parsers differ in which value they use."""


def _reject_duplicate_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = Counter(name for name, _ in pairs)
        raise _DuplicateKeyError(short_repr(names.most_common(1)[0][0]))
    return fields
