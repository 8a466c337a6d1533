"""Snapshot of the scheduler: requests, page ownership, prefix cache.

Events are deltas; a snapshot is the full state, for viewers that connect later. It includes page
numbers, which would be too expensive in events. In a recording, it is an event:

    {"event": "snapshot", "page_size": …, "num_pages": …, "requests": […], "tree": {…},
     "states": {…}}

A snapshot is taken between steps; its cost grows with the number of pages in use.
"""

from dataclasses import asdict
from typing import Any

from .kv_cache_groups import BlockNode
from .page_manager import PageManager
from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest
from .scheduler import Scheduler

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
