"""Index of the pages on disk: sizes and LRU order, in SQLite.

Several processes may use an index, so every change is a transaction, and triggers maintain the
total size. A rollback journal leaves the database consistent if a process is killed. Write-ahead
logging would map a `-shm` file, whose truncation kills every process with SIGBUS.
"""

import os
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VERSION = 1
BUSY_TIMEOUT = 10.0  # seconds to wait for another process's transaction
EVICTION_BATCH = 64  # index entries read per query while evicting

SCHEMA = (
    """CREATE TABLE IF NOT EXISTS pages (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        key BLOB NOT NULL UNIQUE,
        model BLOB NOT NULL,
        size INTEGER NOT NULL,
        depth INTEGER NOT NULL,
        last_used REAL NOT NULL
    )""",
    "CREATE INDEX IF NOT EXISTS pages_by_use ON pages (last_used, depth DESC)",
    "CREATE TABLE IF NOT EXISTS total (bytes INTEGER NOT NULL)",
    "INSERT INTO total SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM total)",
    """CREATE TRIGGER IF NOT EXISTS pages_insert AFTER INSERT ON pages
        BEGIN UPDATE total SET bytes = bytes + NEW.size; END""",
    """CREATE TRIGGER IF NOT EXISTS pages_delete AFTER DELETE ON pages
        BEGIN UPDATE total SET bytes = bytes - OLD.size; END""",
)


class PageIndex:
    """Index of a directory's pages, for all models; not thread-safe.

    Raises:
        sqlite3.Error: the file cannot be opened, or is not an index of this version.
    """

    def __init__(self, file: Path, model: bytes):
        self._model = model
        self._last_id = 0
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))  # the journal inherits the mode
        self._database = sqlite3.connect(
            file, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False
        )
        try:
            # A persistent journal keeps its blocks, so that a full disk does not prevent eviction.
            self._database.execute("PRAGMA journal_mode = PERSIST")
            with self._transaction():
                [[version]] = self._rows("PRAGMA user_version", (), int)
                if version not in (0, VERSION):
                    raise sqlite3.DatabaseError(f"index version {version}, expected {VERSION}")
                for statement in SCHEMA:
                    self._database.execute(statement)
                if not version:  # an existing index opens without a write, even on a full disk
                    self._database.execute(f"PRAGMA user_version = {VERSION}")
        except sqlite3.Error:
            self._database.close()
            raise

    @property
    def num_bytes(self) -> int:
        [[total]] = self._rows("SELECT COALESCE(SUM(bytes), 0) FROM total", (), int)
        return int(total)

    def new_keys(self) -> list[bytes]:
        """Returns the keys of this model's pages added since the last call."""
        query = "SELECT id, key FROM pages WHERE id > ? AND model = ? ORDER BY id"
        rows = self._rows(query, (self._last_id, self._model), int, bytes)
        if rows:
            self._last_id = rows[-1][0]
        return [key for _, key in rows]

    def contains(self, key: bytes) -> bool:
        return bool(self._rows("SELECT 1 FROM pages WHERE key = ?", (key,), int))

    def add(self, pages: Iterable[tuple[bytes, int, int]], max_bytes: int) -> list[bytes]:
        """Adds pages as the most recently used; returns the keys of evicted pages.

        Args:
            pages: (key, size in bytes, depth) tuples; depth is the number of preceding pages in the
                prefix.
        """
        now = time.time()
        with self._transaction():
            self._database.executemany(
                "INSERT OR IGNORE INTO pages (key, model, size, depth, last_used) "
                "VALUES (?, ?, ?, ?, ?)",
                [(key, self._model, size, depth, now) for key, size, depth in pages],
            )
            return self._evict(max_bytes)

    def evict(self, max_bytes: int) -> list[bytes]:
        """Evicts least recently used pages to fit `max_bytes`; returns their keys.

        In a tie, evicts the deepest page first, because a page is useless without its predecessors.
        """
        if self.num_bytes <= max_bytes:
            return []
        with self._transaction():
            return self._evict(max_bytes)

    def _evict(self, max_bytes: int) -> list[bytes]:
        evicted: list[bytes] = []
        excess = self.num_bytes - max_bytes
        while excess > 0:
            query = "SELECT id, key, size FROM pages ORDER BY last_used, depth DESC LIMIT ?"
            rows = self._rows(query, (EVICTION_BATCH,), int, bytes, int)
            if not rows:
                break
            for number, key, size in rows:
                if excess <= 0:
                    break
                self._database.execute("DELETE FROM pages WHERE id = ?", (number,))
                evicted.append(key)
                excess -= size
        return evicted

    def touch(self, keys: Collection[bytes]) -> None:
        now = time.time()
        with self._transaction():
            self._database.executemany(
                "UPDATE pages SET last_used = ? WHERE key = ?", [(now, key) for key in keys]
            )

    def remove(self, keys: Sequence[bytes]) -> None:
        with self._transaction():
            self._database.executemany("DELETE FROM pages WHERE key = ?", [(key,) for key in keys])

    def close(self) -> None:
        self._database.close()

    def _rows(self, query: str, values: Sequence[Any], *types: type) -> list[tuple[Any, ...]]:
        """Returns a query's rows; DatabaseError if another program wrote values of other types."""
        rows = self._database.execute(query, values).fetchall()
        if any(not isinstance(v, t) for row in rows for v, t in zip(row, types, strict=True)):
            raise sqlite3.DatabaseError(f"expected {[t.__name__ for t in types]} from: {query}")
        return rows

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")
