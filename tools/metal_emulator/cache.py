"""Folders of compiled programs: each is made once and removed when it is not used any more."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

# Programs have about 2 MB each; all tests together use fewer than a hundred.
KEPT = 200
# What was used a moment ago may be about to be started.
MIN_AGE_SECONDS = 3600


def fill(folder: Path, make: Callable[[Path], None]) -> None:
    """Makes a folder's content elsewhere first: it is there whole or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        make(temporary)
        try:
            temporary.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def fetch(folder: Path, make: Callable[[Path], None], kept: int = KEPT) -> None:
    """The same where it is not there yet; then all but the `kept` last used beside it go.

    When a folder was used is its time of modification.
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
    """Seconds; now, if another process has just deleted it."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return time.time()
