"""Scheduler events, snapshots and recordings, for `--record` and viewers.

The scheduler calls its listener synchronously with each event, a JSON-serializable dictionary. The
key "event" holds its name, which determines the other keys:

    request_added        the request joined the queue: request_id, prompt_tokens, max_tokens
    request_admitted     it left the queue with pages allocated: request_id, cached_tokens (prefix
                         cache hits)
    request_preempted    its pages were released: request_id, lost_tokens (to be recomputed)
    request_ended        request_id, reason (stop, length, timeout, abort or error), output_tokens,
                         error (message or null)
    tokens_added         its output grew: request_id, token_ids, accepted (how many of them were
                         draft tokens)
    step_scheduled       step (number), chunks, running and waiting (request ids), pages
                         (`PageCounts`). A chunk is tokens [start, end) of a request, followed by
                         draft tokens: request_id, start, end, num_drafts
    state_slot_counts    fields of `StateSlotCounts`; follows step_scheduled if the model has
                         recurrent state

Events are deltas; a snapshot is the full state, for viewers that connect later. It includes page
numbers, which would be too expensive in events; its cost grows with the number of pages in use. It
is taken between steps.

A recording is one JSON object, which contains events, snapshots and seconds since its start:

    {"schema": "tiny-llm-run", "version": 1, "engine": {…}, "events": [{"event": …, "time": …}, …]}

In a recording, a snapshot is an event:

    {"event": "snapshot", "page_size": …, "num_pages": …, "requests": […], "tree": {…},
     "states": {…}}

Within a version, keys are only added.
"""

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

from ...errors import UserError
from .kv_cache_groups import BlockNode
from .page_manager import PageManager
from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest
from .scheduler import Scheduler

log = logging.getLogger("tiny_llm.engine")

SCHEMA = "tiny-llm-run"
VERSION = 1
SNAPSHOT_INTERVAL = 0.25  # minimum seconds between snapshots for a viewer
LABEL_TOKENS = 12  # tokens in a label: enough to recognize the text


def snapshot(scheduler: Scheduler) -> dict[str, Any]:
    """Returns the scheduler's state as JSON-serializable data.

    Returns:
        "requests": the running requests, oldest first, then the queue. "pages" are in block table
        order, without those before a sliding window; the first "shared_pages" of them are in the
        prefix cache.
        "tree": the prefix cache. "pages" lists all pages, parents first. "parents" lists each
        page's preceding page; −1 if there is none or it is evicted; −2 for all but the first page
        of a block. "labels" maps each page that
        starts a branch to at most `LABEL_TOKENS` of its tokens, from the first that differs between
        the branches.
        "states", only for models with recurrent state: the fields of `StateSlotCounts`, and
        "checkpoint_pages", the pages whose node has a checkpoint.
    """
    pages = scheduler.pages
    result = {
        "event": "snapshot",
        "page_size": pages.page_size,
        "num_pages": pages.allocator.num_pages,
        "requests": [
            _request(request, pages) for request in (*scheduler.running, *scheduler.waiting)
        ],
        "tree": _tree(pages.cache),
    }
    if pages.states is not None:
        checkpoint_pages = [node.page for node in pages.states.checkpoints.by_node]
        result["states"] = asdict(pages.states.counts()) | {"checkpoint_pages": checkpoint_pages}
    return result


def _request(request: EngineRequest, pages: PageManager) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "state": request.state.value,
        "prompt_tokens": request.num_prompt_tokens,
        "computed_tokens": request.num_computed,
        "output_tokens": request.num_output_tokens,
        "max_tokens": request.max_tokens,
        "cached_tokens": request.num_cached_tokens,
        "preemptions": request.num_preemptions,
        "pages": list(pages.pages_of(request)),
        "shared_pages": len(pages.shared_pages(request)),
    }


def _tree(cache: PrefixCache) -> dict[str, Any]:
    pages: list[int] = []
    parents: list[int] = []
    labels = {}
    for node in cache.nodes():
        assert node.parent is not None
        block = node.pages if isinstance(node, BlockNode) else (node.page,)
        pages.extend(page for page in block if page >= 0)
        parents.extend([node.parent.page, *[-2] * len(block)][: len(pages) - len(parents)])
        if len(node.children) > 1:
            labels.update(_labels(node))
    for root in cache.roots:
        labels.update(_labels(root))
    return {"pages": pages, "parents": parents, "labels": labels}


def _labels(parent: PrefixNode) -> dict[str, PageTokens]:
    """Maps `parent`'s child pages to their tokens, from where they first differ."""
    columns = enumerate(zip(*parent.children, strict=True))
    start = next((index for index, tokens in columns if len(set(tokens)) > 1), 0)
    return {
        str(child.page): tokens[start : start + LABEL_TOKENS]
        for tokens, child in parent.children.items()
        if child.page >= 0
    }


class Recorder:
    """Listener that records all events as one JSON object.

    Events are streamed to `FILE.part`, which `close` renames to FILE, so that FILE is always
    complete. A failure to write, e.g. because the disk is full, ends the recording only.

    Raises:
        UserError: the file cannot be written.
    """

    def __init__(self, file: Path):
        self._file, self._part = file, file.with_name(f"{file.name}.part")
        self._stream: TextIO | None = None  # None after a failure
        self._started: float | None = None  # time of the first event
        try:
            if file.exists() and not file.is_file():  # renaming would replace a device file
                raise UserError(f"the recording '{file}' is not a regular file; choose another.")
            self._stream = self._part.open("w", encoding="utf-8")
        except OSError as error:  # `exists` also raises it if the name is too long
            raise UserError(
                f"the recording '{file}' cannot be written ({error.strerror})."
            ) from error

    def begin(self, engine: Mapping[str, Any]) -> None:
        """Writes the header, before the first event; `engine` is the result of `LLM.describe`."""
        header = {"schema": SCHEMA, "version": VERSION, "engine": dict(engine)}
        self._write(json.dumps(header)[:-1] + ', "events": [')

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Records an event that may have a `time`, in seconds; by default, the current time."""
        now = event.get("time", time.time())
        separator = "\n" if self._started is None else ",\n"
        self._started = now if self._started is None else self._started
        timed = {**event, "time": round(now - self._started, 6)}
        self._write(separator + json.dumps(timed, separators=(",", ":")))

    def close(self) -> bool:
        """Completes the file; returns False if writing failed."""
        self._write("\n]}\n", is_last=True)
        if self._stream is not None:
            self._part.replace(self._file)
        return self._stream is not None

    def _write(self, text: str, is_last: bool = False) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(text)
            if is_last:
                self._stream.close()
        except OSError as error:
            log.error("recording stopped: '%s' cannot be written (%s)", self._part, error.strerror)
            self._stream = None
