"""Cache of compiled programs: each is compiled once and evicted when unused."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Maximum number of programs. All tests together use fewer than a hundred, of about 2 MB each.
KEPT = 200
# Programs used in the last hour are not evicted, because another process may be about to run one.
MIN_AGE_SECONDS = 3600


def fill(folder: Path, make: Callable[[Path], None]) -> None:
    """Creates a folder atomically: `make` fills a temporary folder, which is then renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        make(temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process has created the folder first
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def fetch(folder: Path, make: Callable[[Path], None], kept: int = KEPT) -> None:
    """Creates a folder if it is missing, and evicts all but the `kept` most recently used folders.

    A folder's modification time is the time of its last use.
    """
    if folder.exists():
        os.utime(folder)
        return
    fill(folder, make)
    others = [(_last_use(other), other) for other in folder.parent.iterdir()]
    for used, other in sorted(others, reverse=True)[kept:]:
        if time.time() - used > MIN_AGE_SECONDS:
            shutil.rmtree(other, ignore_errors=True)


def _last_use(folder: Path) -> float:
    """Time of last use in seconds; the current time if another process has just deleted it."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return time.time()
