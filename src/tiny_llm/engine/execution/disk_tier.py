"""DiskCache: disk tier of the prefix cache, a directory of pages.

    write-behind   full pages and checkpointed recurrent states are copied after the step that
                   completed them; a background thread writes the copies
    read-ahead     a request whose next pages are on disk is admitted, then waits for the thread to
                   read them while other requests continue; the pages are then shared like computed
                   ones

Keys are a hash chain over a prompt's pages. A page's contents depend on its tokens and on all
tokens before them. Its key therefore hashes its tokens and the preceding page's key; the
fingerprint of models and program starts the chain. Pages with equal keys have identical bits, in
every process, so the cache does not affect output tokens.

Unreadable pages are recomputed. `kv_storage/io_thread.py` reads and writes the files. With tensor
parallelism, only rank 0 accesses the disk: a stored page is all ranks' shards, concatenated.
"""

import dataclasses
import hashlib
import importlib.metadata
import platform
import time
import weakref
import zlib
from array import array
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import mlx.core as mx

from ... import kernels
from ...errors import UserError
from ...kv_storage.io_thread import IOThread, PageLoad
from ...kv_storage.page_store import KEY_BYTES, PageStore, last_used_ns
from ...models.families.decoder import Decoder
from ..scheduling.kv_cache_groups import longest_hit
from ..scheduling.prefix_cache import PrefixNode
from ..scheduling.request import EngineRequest
from ..scheduling.scheduler import Scheduler
from .paged_model import PagedModel, RowKind


def page_key(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """Returns the key of page `token_ids` after the page with key `parent`."""
    # [task 6.6.1 key]
    tokens = array("q", token_ids).tobytes()
    return hashlib.blake2b(parent + tokens, digest_size=KEY_BYTES).digest()
    # [/task 6.6.1 key]


def stored_keys(
    parent: bytes, pages: Iterable[Sequence[int]], store: Container[bytes]
) -> list[bytes]:
    """Returns the keys of the leading pages that are stored.

    Args:
        parent: key of the page before the first.
        pages: token ids of each page, in order.
        store: container of the stored pages' keys.
    """
    # [task 6.6.1 prefix]
    keys = []
    for token_ids in pages:
        parent = page_key(parent, token_ids)
        if parent not in store:
            break  # later pages are useless without this one
        keys.append(parent)
    return keys
    # [/task 6.6.1 prefix]


def group_key(page: bytes, group: int) -> bytes:
    """Returns the key of a KV cache group's pages of the block with key `page`."""
    if group == 0:
        return page
    return hashlib.blake2b(page, digest_size=KEY_BYTES, person=b"group%d" % group).digest()


def state_key(page: bytes) -> bytes:
    """Returns the key of the recurrent state after the page with key `page`."""
    return hashlib.blake2b(page, digest_size=KEY_BYTES, person=b"state").digest()


STATE = -1  # stands for a node's recurrent state instead of a KV cache group
CLOSE_SECONDS = 5.0  # time limit for writing queued pages at exit
WAIT_SECONDS = 0.005  # maximum wait for a page when no request has tokens to compute
SCALARS = (str, bytes, int, float, range, type(None), mx.Dtype)  # hashed by their `repr`


@dataclass(frozen=True)
class DiskCacheStats:
    """Totals since startup, and the current size of the page store."""

    hit_tokens: int = 0  # prompt tokens read from disk instead of computed
    read_bytes: int = 0
    written_bytes: int = 0
    num_bytes: int = 0
    num_errors: int = 0


@dataclass(eq=False)
class RequestLoad:
    """Blocks being read for a request.

    Attributes:
        load: the first group's pages of each block, the other groups' pages of the blocks in their
            windows, then, if the model has recurrent state, the state after the last block.
        page_ids: pages of each item of `load`, without the state.
        num_copied: number of items whose pages have been written.
    """

    request: EngineRequest
    load: PageLoad
    page_ids: Sequence[Sequence[int]]
    num_blocks: int
    num_copied: int = 0


class DiskCache:
    """Writes prefix cache pages to disk, and reads them for admitted requests.

    Args:
        scheduler: the engine's scheduler; this object sets its callbacks.
        models: target and draft model, whose pages are stored together.
        row_bytes: bytes of a page, and of a state, of all models.
        root: key of the empty prefix: a fingerprint of the models.
    """

    def __init__(
        self,
        store: PageStore,
        scheduler: Scheduler,
        models: Sequence[PagedModel],
        row_bytes: Mapping[RowKind, int],
        root: bytes,
    ):
        self.hit_tokens = 0
        self._store, self._scheduler, self._models = store, scheduler, models
        self._row_bytes = row_bytes
        self._root = root
        self._loads: dict[str, RequestLoad] = {}
        self._reported = DiskCacheStats()
        self._io = IOThread(store)
        self.attach()
        self._io.start()
        self._finalizer = weakref.finalize(self, self._io.close, CLOSE_SECONDS)

    def attach(self) -> None:
        """Installs callbacks in the scheduler's new, empty page manager; cancels all loads."""
        pages = self._scheduler.pages
        # Key and depth (number of preceding blocks) of each cached block.
        self._keys: dict[PrefixNode, tuple[bytes, int]] = {}
        # What to write: a KV cache group's pages of a node, or its state.
        self._new: dict[tuple[PrefixNode, int], None] = {}
        for request_id in list(self._loads):
            self._cancel(request_id)
        self._scheduler.start_load = self._start_load
        pages.on_share = self._on_share
        if pages.states is not None:
            pages.states.checkpoints.on_add = self._on_checkpoint
        self._discard_checkpoint = pages.cache.on_evict
        pages.cache.on_evict = self._on_evict

    @property
    def stats(self) -> DiskCacheStats:
        io = self._io
        return DiskCacheStats(
            self.hit_tokens, io.read_bytes, io.written_bytes, self._store.num_bytes, io.num_errors
        )

    def close(self) -> None:
        """Writes new pages for at most `CLOSE_SECONDS`, then stops the thread."""
        deadline = time.monotonic() + CLOSE_SECONDS
        while self._new and not self._io.is_paused and time.monotonic() < deadline:
            self.store_new()
            self._io.flush(deadline - time.monotonic())
        pages = self._scheduler.pages
        self._scheduler.start_load = lambda request: 0
        pages.on_share = lambda node: None
        if pages.states is not None:
            pages.states.checkpoints.on_add = lambda node: None
        pages.cache.on_evict = self._discard_checkpoint
        for request_id, item in list(self._loads.items()):
            self._cancel(request_id)
            self._scheduler.finish_load(item.request, 0)
        self._finalizer.detach()
        self._io.close(max(0.0, deadline - time.monotonic()))

    def _key(self, node: PrefixNode) -> tuple[bytes, int]:
        if node.parent is None and node not in self._keys:
            self._keys[node] = page_key(self._root, node.tokens), -1
        return self._keys[node]

    def _on_share(self, node: PrefixNode) -> None:
        assert node.parent is not None
        parent, depth = self._key(node.parent)
        key = page_key(parent, node.tokens)
        self._keys[node] = key, depth + 1
        for group in range(len(self._scheduler.config.kv_groups)):
            if group_key(key, group) not in self._store:
                self._new[node, group] = None

    def _on_checkpoint(self, node: PrefixNode) -> None:
        if state_key(self._keys[node][0]) not in self._store:
            self._new[node, STATE] = None

    def _on_evict(self, node: PrefixNode) -> None:
        self._discard_checkpoint(node)
        for part in range(STATE, len(self._scheduler.config.kv_groups)):
            self._new.pop((node, part), None)
        del self._keys[node]

    def on_finish(self, request: EngineRequest) -> None:
        """Registers a finishing request's last checkpoint for the next `store_new`."""
        states, node = self._scheduler.pages.states, request.last_node
        if states is None:
            return
        by_node = states.checkpoints.by_node
        while node is not None and node.parent is not None and node not in by_node:
            node = node.parent
        if node is not None and node in by_node:
            self._on_checkpoint(node)

    def poll_stats(self) -> bool:
        """Returns whether `stats` has changed since the last call."""
        before, self._reported = self._reported, self.stats
        return before != self._reported

    def store_new(self) -> None:
        """Copies new pages and states to the write queue while it has capacity.

        Called between steps, when cached pages and checkpoints do not change.
        """
        states = self._scheduler.pages.states
        by_node = {} if states is None else states.checkpoints.by_node
        for node, part in list(self._new):
            kind: RowKind = "state" if part == STATE else "page"
            key, depth = self._keys[node]
            if part == STATE:
                # Otherwise, a later checkpoint has replaced it.
                indices = [by_node[node].slot] if node in by_node else []
                key = state_key(key)
            else:  # possibly evicted, if the group has a window
                indices = [page for page in self._scheduler.pages.block(node, part) if page >= 0]
                key = group_key(key, part)
            if not self._io.can_queue(self._row_bytes[kind] * len(indices)):
                return
            del self._new[node, part]
            if not indices:
                continue
            try:
                row = b"".join(
                    model.read_row(kind, index)
                    for index in indices
                    for model in self._models
                    if model.row_bytes(kind)
                )
            except UserError:  # the rank group has shut down: no page can be read
                self._new.clear()
                return
            self._io.put(key, row, depth)

    def _start_load(self, request: EngineRequest) -> int:
        pages, size = self._scheduler.pages, self._scheduler.config.page_size
        is_scored = request.num_scored == request.num_to_score
        path, node = [], request.last_node
        while node is not None:
            path.append(self._key(node)[0])
            node = node.parent
        # At least one token must be computed for its logits.
        missing = range(request.num_shared, (request.num_tokens - 1) // size)
        tokens = (pages.tokens_of_page(request, index) for index in missing)
        keys = stored_keys(path[0], tokens, self._store)
        used = {key: last_used_ns(depth) for depth, key in enumerate([*reversed(path), *keys], -1)}
        if state_bytes := self._row_bytes["state"]:
            used |= {state_key(key): time_ns for key, time_ns in used.items()}
            while keys and state_key(keys[-1]) not in self._store:
                keys.pop()
        groups = range(len(self._scheduler.config.kv_groups))
        used |= {group_key(key, each): used[key] for key in (*path, *keys) for each in groups}
        keys = self._with_windows(request, keys)
        self._io.touch(used)
        if not (keys and is_scored) or self._io.is_stalled:
            return 0
        if not pages.prepare_load(request, request.num_shared + len(keys)):
            return 0
        wanted = self._wanted(request, keys)
        ids = [pages.request_block(request, index, group) for _, index, group in wanted]
        items = [
            (key, self._row_bytes["page"] * len(page_ids))
            for (key, *_), page_ids in zip(wanted, ids, strict=True)
        ]
        if state_bytes:
            items.append((state_key(keys[-1]), state_bytes))
        self._cancel(request.request_id)
        load = self._io.start_load(items)
        self._loads[request.request_id] = RequestLoad(request, load, ids, len(keys))
        return len(keys) * size

    def _with_windows(self, request: EngineRequest, keys: list[bytes]) -> list[bytes]:
        """The longest prefix whose final window is stored, for each group after the first."""
        groups, first = range(1, len(self._scheduler.config.kv_groups)), request.num_shared
        missing = (
            [group for group in groups if group_key(key, group) not in self._store] for key in keys
        )
        num_blocks = longest_hit(missing, self._scheduler.pages.num_before_window, first)
        return keys[: num_blocks - first]

    def _wanted(
        self, request: EngineRequest, keys: Sequence[bytes]
    ) -> list[tuple[bytes, int, int]]:
        """(key, block, group) of the pages to read for the blocks with `keys`."""
        first, pages = request.num_shared, self._scheduler.pages
        return [
            (group_key(keys[index - first], group), index, group)
            for group in range(len(self._scheduler.config.kv_groups))
            for index in range(
                max(first, pages.num_before_window(first + len(keys), group)), first + len(keys)
            )
        ]

    def _cancel(self, request_id: str) -> None:
        item = self._loads.pop(request_id, None)
        if item is not None:
            self._io.cancel(item.load)

    def poll(self) -> None:
        """Copies newly read pages into the requests' pages; ends completed loads."""
        for request_id, item in list(self._loads.items()):
            if not item.request.num_loading:  # the request was preempted or finished
                self._cancel(request_id)
                continue
            rows, is_done = self._io.collect(item.load)
            blocks = item.page_ids[item.num_copied : item.num_copied + len(rows)]
            size, num_blocks = self._row_bytes["page"], len(blocks)
            parts = [
                memoryview(row)[index * size : (index + 1) * size]
                for row, page_ids in zip(rows, blocks, strict=False)
                for index in range(len(page_ids))
            ]
            self._write_rows("page", list(chain(*blocks)), parts)
            item.num_copied += num_blocks
            if is_done:
                self._cancel(request_id)
                self._finish(item, rows[num_blocks:])

    def _finish(self, item: RequestLoad, rows: Sequence[bytes]) -> None:
        """Ends a load; unreadable pages are left to be recomputed."""
        num_blocks = item.num_copied
        if len(self._scheduler.config.kv_groups) > 1:  # all groups, or none
            num_blocks = item.num_blocks if num_blocks == len(item.page_ids) else 0
        num_tokens = num_blocks * self._scheduler.config.page_size
        states = self._scheduler.pages.states
        if states is not None:
            slot = states.load_slot(item.request)
            self._write_rows("state", [slot] * len(rows), rows)
            num_tokens *= len(rows)  # 0 without the state: the pages are then useless
        self.hit_tokens += num_tokens
        self._scheduler.finish_load(item.request, num_tokens)

    def _write_rows(
        self, kind: RowKind, indices: Sequence[int], rows: Sequence[bytes | memoryview]
    ) -> None:
        """Copies stored rows, each with all models' bytes, to pages or state slots."""
        parts = [memoryview(row) for row in rows]
        for model in self._models:
            size = model.row_bytes(kind)
            if rows and size:
                with suppress(UserError):  # the rank group has shut down: no step reads the rows
                    model.write_rows(kind, indices, [part[:size] for part in parts])
            parts = [part[size:] for part in parts]

    def wait(self) -> None:
        self._io.wait(WAIT_SECONDS)


def fingerprint(models: Iterable[Decoder], workers: Iterable[bytes] = ()) -> bytes:
    """Hashes models, options and program: the root of every key chain.

    Covers everything that determines a page's bits, except its tokens: the models, the versions of
    this package and of MLX, and the extension's binary. Weights and settings are hashed as loaded,
    so the checkpoint's files are not needed.

    Args:
        workers: fingerprints of the other ranks' shards.
    """
    extension = kernels.extension()
    arrays: list[mx.array] = []
    seen: dict[int, Any] = {}
    settings: list[Any] = [
        *(importlib.metadata.version(name) for name in ("tiny-llm", "mlx")),
        zlib.crc32(Path(extension._ext.__file__).read_bytes()),
        *workers,
        kernels.computes_on_cpu(),
        extension.instruction_set(),
        platform.machine(),
        *(text for model in models for text in _describe(model, arrays, seen)),
    ]
    mx.eval(arrays)
    with ThreadPoolExecutor() as pool:
        settings += pool.map(_checksum, arrays)
    text = "\n".join(map(str, settings))
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()


def _checksum(values: mx.array) -> int:
    memory = memoryview(mx.view(values.reshape(-1), mx.uint8))  # type: ignore[arg-type]
    return zlib.crc32(memory)


def _describe(value: Any, arrays: list[mx.array], seen: dict[int, Any]) -> Iterator[str]:
    """Describes an object and, recursively, its members; collects its arrays."""
    if isinstance(value, SCALARS):
        yield repr(value)
        return
    if id(value) in seen:
        yield "seen"
        return
    seen[id(value)] = value  # kept alive, so that the id stays unique
    yield getattr(value, "__qualname__", type(value).__qualname__)  # a function's name, or a type's
    members: Iterable[Any] = ()
    if isinstance(value, mx.array):
        arrays.append(value)
        members = value.shape, value.dtype
    elif isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, Set):
        members = sorted(value, key=repr)
    elif isinstance(value, Sequence):
        members = value
    elif dataclasses.is_dataclass(value):
        members = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif hasattr(value, "__dict__"):
        members = vars(value).items()
    for member in members:
        yield from _describe(member, arrays, seen)
