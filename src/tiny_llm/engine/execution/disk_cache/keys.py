"""Page keys: a hash chain over a prompt's pages.

A page's contents depend on its tokens and on all tokens before them. Its key therefore hashes its
tokens and the preceding page's key; the fingerprint starts the chain. Pages with equal keys
have identical bits, in every process.
"""

import hashlib
from array import array
from collections.abc import Container, Iterable, Sequence

from ....kv_storage.disk.store import KEY_BYTES


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
