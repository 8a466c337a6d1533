"""Checkpoint placement: positions from which later requests may continue.

Checkpoints are placed where later requests are likely to diverge:

    prompt end      the last page boundary, and the last one before the tokens which the chat
                    template may render differently in the next turn
    branches        where the prompt diverges from the pages of an earlier request, or the request
                    at the head of the queue diverges from the prompt
    intervals       every `CHECKPOINT_INTERVAL` tokens, while slots are free
    rolling         the last page boundary at which a step ended; replaced by the sequence's next
                    checkpoint, unless a request has continued from it or the tree branches
                    between the two

Positions are token counts and multiples of the page size: a checkpoint belongs to a page.
"""

from collections.abc import Sequence

from ..prefix_cache import PrefixNode

CHECKPOINT_INTERVAL = 2048  # tokens
# Upper bound on trailing prompt tokens that the chat template may render differently next turn.
GENERATION_PROMPT_TOKENS = 16


def prompt_end_positions(num_tokens: int, page_size: int) -> set[int]:
    """Returns the positions of the checkpoints at the end of a prompt.

    The first position is the last page boundary before the prompt's last token, which is always
    computed for its logits. The second is the last boundary that at least
    `GENERATION_PROMPT_TOKENS` tokens follow, often the same. Callers ignore positions ≤ 0.
    """
    # [task 6.5.3 prompt-end]
    last = (num_tokens - 1) // page_size * page_size
    stable = (num_tokens - GENERATION_PROMPT_TOKENS) // page_size * page_size
    return {stable, last}
    # [/task 6.5.3 prompt-end]


def cached_prefix(token_ids: Sequence[int], node: PrefixNode, position: int, page_size: int) -> int:
    """Returns the cached prefix's length in tokens, regardless of checkpoints.

    At least one token remains to be computed, as in `PrefixCache.match`. `node` is the last node of
    the prefix cache hit and ends at token `position`.
    """
    # [task 6.5.3 branch]
    while position + page_size < len(token_ids):
        child = node.children.get(tuple(token_ids[position : position + page_size]))
        if child is None:
            break
        node, position = child, position + page_size
    return position
    # [/task 6.5.3 branch]


def common_prefix(token_ids: Sequence[int], other: Sequence[int], page_size: int) -> int:
    """Returns the length in tokens of two prompts' common full pages.

    At least one token of `other` remains to be computed, as in `PrefixCache.match`.
    """
    end = min(len(token_ids), len(other) - 1) // page_size * page_size
    for start in range(0, end, page_size):
        if token_ids[start : start + page_size] != other[start : start + page_size]:
            return start
    return end
