"""Snapshot of the scheduler: requests, page ownership, prefix cache.

Events are deltas. A snapshot is the full state, for viewers that connect later, and includes page
numbers, which would be too expensive in events. It has the form of an event, so recordings hold
both:

    {"event": "snapshot", "page_size": …, "num_pages": …, "requests": […], "tree": {…}}

Taken between steps. The cost grows with the pages in use: see `SNAPSHOT_INTERVAL`.
"""

from typing import Any

from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest
from .scheduler import Scheduler

SNAPSHOT_INTERVAL = 0.25  # minimum seconds between snapshots for a viewer
LABEL_TOKENS = 12  # tokens in a label: enough to recognise the text


def snapshot(scheduler: Scheduler) -> dict[str, Any]:
    """Returns the scheduler's state as JSON-serializable data.

    Returns:
        "requests": running requests, oldest first, then the queue. "pages" in block table order;
        the first "shared_pages" of them are in the prefix cache.
        "tree": the prefix cache. "pages", parents first; "parents", the preceding page of each, or
        −1; "labels", by page, the first distinguishing tokens of pages that start a branch.
    """
    pages = scheduler.pages
    return {
        "event": "snapshot",
        "page_size": pages.page_size,
        "num_pages": pages.allocator.num_pages,
        "requests": [_request(request) for request in (*scheduler.running, *scheduler.waiting)],
        "tree": _tree(pages.cache),
    }


def _request(request: EngineRequest) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "state": request.state.value,
        "prompt_tokens": request.num_prompt_tokens,
        "computed_tokens": request.num_computed,
        "output_tokens": request.num_output_tokens,
        "max_tokens": request.max_tokens,
        "cached_tokens": request.num_cached_tokens,
        "preemptions": request.num_preemptions,
        "pages": list(request.page_ids),
        "shared_pages": request.num_shared,
    }


def _tree(cache: PrefixCache) -> dict[str, Any]:
    pages, parents, labels = [], [], {}
    for node in cache.nodes():
        assert node.parent is not None
        pages.append(node.page)
        parents.append(node.parent.page)
        if len(node.children) > 1:
            labels.update(_labels(node))
    labels.update(_labels(cache.root))
    return {"pages": pages, "parents": parents, "labels": labels}


def _labels(parent: PrefixNode) -> dict[str, PageTokens]:
    """Maps each child page of `parent` to its tokens, from where siblings first differ."""
    columns = enumerate(zip(*parent.children, strict=True))
    start = next((index for index, tokens in columns if len(set(tokens)) > 1), 0)
    return {
        str(child.page): tokens[start : start + LABEL_TOKENS]
        for tokens, child in parent.children.items()
    }
