"""A snapshot: who runs, who waits, who holds which page, and what the prefix cache keeps.

Events say what happens. A snapshot says what is, for a viewer who comes later, and for what events
leave out because it would cost too much: which pages those are. It has the form of an event, so
that recordings hold both:

    {"event": "snapshot", "page_size": …, "num_pages": …, "requests": […], "tree": {…}}

It is taken between two steps, and its cost grows with the pages in use: see `SNAPSHOT_INTERVAL`.
"""

from typing import Any

from .prefix_cache import PageTokens, PrefixCache, PrefixNode
from .request import EngineRequest
from .scheduler import Scheduler

SNAPSHOT_INTERVAL = 0.25  # seconds between two snapshots for one viewer, at least
LABEL_TOKENS = 12  # of a page at which the tree branches: enough to recognise a text by


def snapshot(scheduler: Scheduler) -> dict[str, Any]:
    """The scheduler's state as JSON has it.

    Returns:
        "requests": those that run, oldest first, then the queue. "pages" are their pages in order,
        the first "shared_pages" of which are in the prefix cache.
        "tree": the prefix cache. "pages" has its pages, parents first, "parents" the page before
        each, −1 for none, and "labels" tokens of the pages that begin a branch, by page: the first
        ones that set it apart.
    """
    pages = scheduler.pages
    return {
        "event": "snapshot",
        "page_size": pages.page_size,
        "num_pages": pages.allocator.num_pages,
        "requests": [_request(one) for one in (*scheduler.running, *scheduler.waiting)],
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
    """For each page after `parent`, its tokens from where the pages differ."""
    places = enumerate(zip(*parent.children, strict=True))
    start = next((place for place, tokens in places if len(set(tokens)) > 1), 0)
    return {
        str(child.page): tokens[start : start + LABEL_TOKENS]
        for tokens, child in parent.children.items()
    }
