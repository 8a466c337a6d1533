"""Bounded reads of checkpoint files.

Checkpoints are untrusted. Only regular files within the folder are read, up to a size limit well
above any real checkpoint's. See `resolve_file`.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ...errors import UserError, short_repr

# Python's objects take up to 25 times the memory of their JSON.
MAX_JSON_BYTES = 5_000_000
MAX_TEXT_BYTES = 1_000_000
MAX_TOKENIZER_BYTES = 100_000_000  # tokenizer.json is parsed in Rust
MAX_NAME_CHARS = 255


class ModelError(UserError):
    """The model cannot be found, downloaded or loaded; the message has the reason."""


def resolve_file(folder: Path, name: str) -> Path:
    """Path of a regular file in a checkpoint's folder.

    Symbolic links are followed: the hub's cache consists of them, and downloads contain none.

    Args:
        folder: the checkpoint's folder.
        name: file name without directories.

    Raises:
        ModelError: the name leaves the folder, or is not a regular file.
    """
    check_file_name(folder, name)
    file = folder / name
    try:
        target = file.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{folder} has no {name} that can be opened; copy it there.") from error
    if not target.is_file():
        raise ModelError(f"{file} is not a plain file; put one in its place.")
    return file


def check_file_name(folder: Path, name: str) -> None:
    """Rejects a file name that is absolute, contains directories or is not printable.

    Raises:
        ModelError: the name is invalid.
    """
    if not is_plain_file_name(name):
        raise ModelError(
            f"{folder} names the file {short_repr(name)}; it must be the plain name of a file in "
            "the folder: download the model again."
        )


def is_plain_file_name(name: str) -> bool:
    """Whether a string is a plain file name, within its folder."""
    return (
        0 < len(name) <= MAX_NAME_CHARS and name == Path(name).name != ".." and name.isprintable()
    )


def read_limited(folder: Path, name: str, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Reads a text file of a checkpoint.

    Raises:
        ModelError: see `resolve_file`; the file is too large, unreadable or not UTF-8.
    """
    file = resolve_file(folder, name)
    try:
        with file.open("rb") as stream:
            content = stream.read(max_bytes + 1)
        if len(content) <= max_bytes:
            return content.decode("utf-8")
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{file} cannot be read: byte {error.start} is not UTF-8; download it again."
        ) from error
    raise _too_large(file, max_bytes)


def check_file_size(file: Path, max_bytes: int) -> None:
    """Rejects a file that is too large.

    Raises:
        ModelError: the file has more than `max_bytes`.
    """
    if file.stat().st_size > max_bytes:
        raise _too_large(file, max_bytes)


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Reads a required JSON object of a checkpoint.

    Raises:
        ModelError: the file is missing or is not a JSON object; see also `read_limited`.
    """
    if not (folder / name).exists():
        raise ModelError(f"{folder} has no {name}; is it a model's folder?")
    try:
        content = parse_json(read_limited(folder, name, MAX_JSON_BYTES))
    except ValueError as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"{folder / name} cannot be read: {error}.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{folder / name} does not hold a JSON object.")
    return content


def parse_json(text: str) -> Any:
    """Parses JSON, rejecting duplicate keys.

    Raises:
        ValueError: the text is not valid JSON for a checkpoint; the message has the position.
    """
    try:
        return json.loads(text, object_pairs_hook=_reject_duplicate_keys)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"it is not JSON at line {error.lineno}, column {error.colno} ({error.msg})"
        ) from error
    except RecursionError as error:
        raise ValueError("its JSON has too many levels") from error
    except _DuplicateKeyError as error:
        raise ValueError(f"it has {error} twice in one object") from error
    except ValueError as error:  # Python reads integers of up to 4300 digits
        raise ValueError("it has a number of thousands of digits") from error


def _too_large(file: Path, max_bytes: int) -> ModelError:
    return ModelError(
        f"{file} has more than {max_bytes:,} bytes, which no real checkpoint needs; download it "
        "again."
    )


class _DuplicateKeyError(Exception):
    """Duplicate key in a JSON object: parsers differ in which value they keep."""


def _reject_duplicate_keys(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise _DuplicateKeyError(short_repr(name))
        fields[name] = value
    return fields
