"""Workspace: list, read and edit files inside one folder, with bounded output."""

import os
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import UserError
from .tools import Tool, ToolError

DEFAULT_MAX_OUTPUT = 4000  # maximum characters of a tool result
MAX_FILE_BYTES = 10**7  # larger files are not read
MIN_OUTPUT = 100  # smallest `max_output`; leaves room for the longest `truncation_note`


class Workspace:
    """A folder whose files the agent can access.

    Args:
        max_output: maximum length of a tool result in characters.

    Raises:
        UserError: the folder does not exist, or `max_output` is below `MIN_OUTPUT`.
    """

    def __init__(self, root: str | os.PathLike[str], max_output: int = DEFAULT_MAX_OUTPUT):
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise UserError(
                f"the workspace {root} does not exist or is not a folder; create it first."
            )
        if max_output < MIN_OUTPUT:
            raise UserError(f"max_output must be at least {MIN_OUTPUT}, got {max_output}.")
        self.max_output = max_output

    def resolve(self, path: str) -> Path:
        """Resolves `..` and symbolic links in a path relative to the root.

        Raises:
            ToolError: the path is outside the root.
        """
        # [task 7.2.1 resolve]
        resolved = Path(os.path.realpath(self.root / path))
        if not resolved.is_relative_to(self.root):
            raise ToolError(f"{path} is outside the workspace; use a path relative to it")
        return resolved
        # [/task 7.2.1 resolve]

    def list_files(self) -> str:
        """Lists all files, sorted, one per line; does not follow links to folders."""
        paths, folders = [], [self.root]
        while folders:  # `os.walk` recurses
            with suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(Path(entry.path))
                    elif not entry.is_dir():
                        paths.append(Path(entry.path).relative_to(self.root).as_posix())
        return truncate("\n".join(sorted(paths)) or "no files", self.max_output)

    def read_file(self, path: str, first_line: int = 1) -> str:
        """Reads a text file, starting at line `first_line`.

        Raises:
            ToolError: the file does not exist, is not UTF-8 or exceeds `MAX_FILE_BYTES`.
        """
        lines = self._read(self.resolve(path), path).splitlines(keepends=True)
        start = int(first_line) - 1  # JSON Schema accepts the float 2.0 as an integer
        return truncate("".join(lines[start:]), self.max_output)

    def edit_file(self, path: str, old: str, new: str) -> str:
        """Replaces the only occurrence of `old`; an empty `old` creates a file.

        Raises:
            ToolError: `old` does not occur exactly once, the file to edit does not exist, or the
                file to create already exists.
        """
        target = self.resolve(path)
        if not old:
            if target.exists():
                raise ToolError(f"{path} already exists; set old to the text to replace")
            for folder in reversed(target.parents):  # `mkdir(parents=True)` recurses
                folder.mkdir(exist_ok=True)
            write_atomically(target, new.encode())
            return f"created {path}"
        write_atomically(target, replace_once(self._read(target, path), old, new).encode())
        return f"edited {path}"

    def tools(self) -> list[Tool]:
        text = {"type": "string"}
        line = {"type": "integer", "minimum": 1}
        return [
            Tool("list_files", "List all files.", _object({}), self.list_files),
            Tool(
                "read_file",
                "Read a file, starting at first_line.",
                _object({"path": text}, first_line=line),
                self.read_file,
            ),
            Tool(
                "edit_file",
                "Replace old, which must occur exactly once, with new. If old is empty, create the "
                "file.",
                _object({"path": text, "old": text, "new": text}),
                self.edit_file,
            ),
        ]

    def _read(self, target: Path, path: str) -> str:
        if not target.is_file():
            raise ToolError(f"there is no file {path}; call list_files for the existing files")
        try:
            with open(target, "rb", opener=_open_regular_file) as file:
                data = file.read(MAX_FILE_BYTES + 1)
            if len(data) > MAX_FILE_BYTES:
                raise ToolError(f"{path} is larger than {MAX_FILE_BYTES:,} bytes")
            return data.decode()  # unlike read_text, preserves line endings
        except UnicodeDecodeError as error:
            raise ToolError(f"{path} is not a text file") from error


def _open_regular_file(path: str, flags: int) -> int:
    """Opens a file; the path has no links, unless another program has just added one."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ToolError(f"{path} is not a regular file")
    return descriptor


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"properties": {**required, **optional}, "required": list(required)}


def replace_once(text: str, old: str, new: str) -> str:
    """Replaces the only occurrence of `old`, which must not be empty.

    Raises:
        ToolError: `old` does not occur, or occurs several times (including overlaps). The message
            states the problem and the fix.
    """
    # [task 7.2.2 replace]
    first = text.find(old)
    if first < 0:
        raise ToolError("old does not occur in the file; read the file and copy the text exactly")
    if text.find(old, first + 1) >= 0:
        raise ToolError("old occurs several times; include the lines before and after it")
    return text[:first] + new + text[first + len(old) :]
    # [/task 7.2.2 replace]


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file atomically: a crash leaves either the old or the new content.

    Preserves the file's permissions. Leaves no temporary file behind on failure.
    """
    # [task 7.2.3 write]
    descriptor, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            shutil.copymode(path, name)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    # [/task 7.2.3 write]


def truncate(text: str, limit: int) -> str:
    """Truncates a text to at most `limit` (at least `MIN_OUTPUT`) characters.

    A longer text becomes head, note and tail. Head and tail differ in length by at most one. The
    note is `truncation_note(cut, len(text))`, where `cut` is the number of omitted characters.
    """
    # [task 7.2.4 truncate]
    if len(text) <= limit:
        return text
    kept = limit - len(truncation_note(len(text), len(text)))
    tail = kept // 2
    head = kept - tail
    return text[:head] + truncation_note(len(text) - kept, len(text)) + text[len(text) - tail :]
    # [/task 7.2.4 truncate]


def truncation_note(cut: int, total: int) -> str:
    """Returns the line that replaces `cut` of the `total` characters of a text."""
    return f"\n[… {cut} of {total} characters cut …]\n"
