"""Reads of checkpoint files, confined to the checkpoint's folder.

Errors name the file and the usual cause: an incomplete download, a Git LFS pointer instead of the
file, or a folder without a model.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...errors import UserError, short_repr

LFS_POINTER = b"version https://git-lfs"  # start of Git's stand-in for a large file


class ModelError(UserError):
    """The model cannot be found, downloaded or loaded."""


@contextmanager
def model_errors(failure: str, *kinds: type[Exception]) -> Iterator[None]:
    """Converts ValueErrors and `kinds` raised in the block to `ModelError`.

    `failure` begins the message, for example "the model in /models/a cannot be loaded".
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, ModelError) or not isinstance(error, (ValueError, *kinds)):
            raise
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"{failure}: {reason}.") from error


def resolve_file(folder: Path, name: str) -> Path:
    """Path of a file in a checkpoint's folder; ModelError unless it is a file.

    Follows symbolic links, because the hub cache uses them. No repository file is downloaded as a
    link, so this is safe.
    """
    file = folder / name
    if not file.is_file():
        raise ModelError(f"{file} is missing or cannot be opened; copy it to this path.")
    return file


def is_plain_file_name(name: str) -> bool:
    """Whether a file name from a checkpoint cannot lead out of its folder."""
    return name == Path(name).name != ".." and "\0" not in name


def check_file_name(folder: Path, name: str) -> None:
    if not is_plain_file_name(name):
        raise ModelError(
            f"{folder} refers to the file {short_repr(name)}, expected a file name without "
            "directories; download the model again."
        )


def read_text(folder: Path, name: str) -> str:
    """Reads a checkpoint's text file; ModelError if it is missing, unreadable or not UTF-8."""
    file = resolve_file(folder, name)
    try:
        content = file.read_bytes()
        reject_lfs_pointer(file, content)
        return content.decode("utf-8")
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{file} cannot be read: byte {error.start} is not UTF-8; download it again."
        ) from error


def reject_lfs_pointer(file: Path, start: bytes) -> None:
    """Raises ModelError if a file, which begins with `start`, is a Git LFS pointer."""
    if start.startswith(LFS_POINTER):
        raise ModelError(
            f"{file} is a Git LFS pointer instead of the file; run `git lfs pull` in its folder."
        )


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """Reads a checkpoint's required JSON object; ModelError if it is missing or invalid."""
    file = folder / name
    if not file.exists():
        raise ModelError(f"{folder} has no {name}; it is not a model folder.")
    try:
        content = json.loads(read_text(folder, name))
    except json.JSONDecodeError as error:
        raise ModelError(
            f"{file} cannot be read: invalid JSON at line {error.lineno}, column {error.colno} "
            f"({error.msg}); download it again."
        ) from error
    if not isinstance(content, dict):
        raise ModelError(f"{file} is not a JSON object.")
    return content


def read_optional_json(folder: Path, name: str) -> dict[str, Any]:
    """Reads an optional JSON object from a checkpoint; {} if missing."""
    return read_json(folder, name) if (folder / name).exists() else {}
