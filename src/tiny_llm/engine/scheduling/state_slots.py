"""StateSlots: allocates recurrent-state slots to requests and places checkpoints.

A linear attention layer has a recurrent state instead of keys and values. A state cannot be
trimmed: a request can continue only from a position whose state was stored. A *slot* holds the
states of all linear attention layers at one position of one sequence:

    current     each running request's slot: the state after its computed tokens
    checkpoint  the slot of a prefix cache node: the state after the node's page

A step reads a request's slot and can store the state after any of its tokens in another slot
(`Chunk.state_writes`). States are therefore never copied: if the current slot is also a checkpoint,
the next state is written to another slot. After draft tokens, the slot written after the last
accepted one becomes the current slot.

No deadlock: a running request needs only its current slot, which it can overwrite after discarding
the checkpoint there. Admission needs two slots, because a request reads one and writes another
after a prefix cache hit; all slots other than those of running requests are free or evictable.

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

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from .checkpoints import Checkpoints
from .config import MIN_STATE_SLOTS
from .page_allocator import PageAllocator
from .prefix_cache import PrefixNode
from .request import Chunk, EngineRequest, SchedulerOutput

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


DRAFT_SLOT_DIVISOR = 4  # draft tokens may evict checkpoints from at most 1/4 of the slots


@dataclass(frozen=True)
class StateSlotCounts:
    """Counts of recurrent state slots, by use."""

    free: int  # neither checkpoints nor used by a request
    cached: int  # checkpoints of the prefix cache, not used by a request
    used: int
    checkpoints: int  # all checkpoints, including those in use by requests


@dataclass(eq=False)
class RequestSlots:
    """State slots of a running request.

    Attributes:
        current: state after the computed tokens; not written yet if there are none.
        next: slot for the next chunk's final state; −1 overwrites `current`.
        previous: state before the last computed token, for a draft model that has not computed
            that token; −1 if not needed.
        reserved: slots for the step's draft tokens and checkpoints.
        positions: where to place checkpoints, in tokens.
        branches: the `positions` at which other requests diverge.
    """

    current: int = -1
    next: int = -1
    previous: int = -1
    reserved: list[int] = field(default_factory=list)
    positions: set[int] = field(default_factory=set)
    branches: set[int] = field(default_factory=set)


class StateSlots:
    """Allocates the state slots of all requests and checkpoints.

    Without `enable_prefix_caching`, no checkpoints are placed.
    """

    def __init__(self, num_slots: int, page_size: int, enable_prefix_caching: bool):
        self.num_slots = num_slots
        self._allocator = PageAllocator(num_slots)
        self.checkpoints = Checkpoints(self._allocator)
        self._page_size = page_size
        self._interval = max(1, CHECKPOINT_INTERVAL // page_size) * page_size
        self._has_checkpoints = enable_prefix_caching
        self._num_reserved = 0  # slots reserved for the head of the queue
        self._num_drafts = 0  # draft tokens in the current step

    @property
    def num_used(self) -> int:
        return self._allocator.num_used

    @property
    def free_slots(self) -> list[int]:
        return self._allocator.free_pages

    def up_to_checkpoint(self, path: list[PrefixNode]) -> list[PrefixNode]:
        return path[: self.checkpoints.last(path)]

    def begin_step(
        self, running: Iterable[EngineRequest], waiting: Collection[EngineRequest]
    ) -> None:
        """Gives each running request a writable slot; called before admissions."""
        self._num_reserved = MIN_STATE_SLOTS if waiting else 0
        self._num_drafts = 0
        for request in running:
            slots: RequestSlots = request.state_slots
            # [task 6.5.2 elsewhere]
            if slots.next < 0 and self._allocator.ref_count(slots.current) > 1:
                slots.next = self._allocate_next(request)
            # [/task 6.5.2 elsewhere]

    def _allocate_next(self, request: EngineRequest) -> int:
        node = request.last_node
        assert self.checkpoints.by_node[node].slot == request.state_slots.current
        return self.checkpoints.allocate_other(node, self._num_reserved)

    def reserve_drafts(self, request: EngineRequest, count: int) -> int:
        """Reserves slots for up to `count` draft tokens; returns the number reserved."""
        reserved = request.state_slots.reserved
        while len(reserved) < count:
            can_evict = self._num_drafts < self.num_slots // DRAFT_SLOT_DIVISOR
            slot = self.checkpoints.allocate(
                math.inf if can_evict else -math.inf, self._num_reserved
            )
            if slot < 0:
                break
            reserved.append(slot)
            self._num_drafts += 1
        return len(reserved)

    def can_admit(self, request: EngineRequest, running: Iterable[EngineRequest]) -> bool:
        """Whether slots are available and no checkpoint is worth waiting for.

        A running request that is still computing a prefix of `request` will place a checkpoint at
        the end of that prefix, from which `request` can continue.
        """
        if self.checkpoints.num_available < MIN_STATE_SLOTS:
            return False
        return not self._has_checkpoints or not any(
            common_prefix(other.token_ids, request.token_ids, self._page_size) > other.num_computed
            for other in running
            if other.num_uncomputed > 1
        )

    def admit(self, request: EngineRequest) -> None:
        """Assigns slots to a request whose pages have just been allocated."""
        slots = request.state_slots = RequestSlots()
        if request.num_computed:
            slots.current = self.checkpoints.hit(request.last_node)
            slots.next = self.checkpoints.allocate()
        else:
            slots.current = self.checkpoints.allocate()
        assert slots.current >= 0
        assert slots.next >= 0 or not request.num_computed
        if self._has_checkpoints:
            size, tokens = self._page_size, request.token_ids
            branch = cached_prefix(tokens, request.last_node, request.num_computed, size)
            slots.branches = {branch}
            slots.positions = prompt_end_positions(len(tokens), size) | slots.branches

    def plan(self, step: SchedulerOutput, head: EngineRequest | None) -> SchedulerOutput:
        """Returns the step with the slots that its chunks read and write.

        `head` is the head of the queue after admissions.
        """
        self.checkpoints.protected = None
        return replace(step, chunks=tuple(self._plan_chunk(chunk, head) for chunk in step.chunks))

    def _plan_chunk(self, chunk: Chunk, head: EngineRequest | None) -> Chunk:
        request = chunk.request
        slots: RequestSlots = request.state_slots
        drafts = list(slots.reserved)
        assert len(drafts) == chunk.num_drafts
        checkpoints = self._place_checkpoints(chunk, head)
        # [task 6.5.2 writes]
        read = slots.current if chunk.start > 0 else -1
        final = slots.current if slots.next < 0 else slots.next
        writes = [(position - chunk.start - 1, slot) for position, slot in checkpoints]
        writes.extend(enumerate([final, *drafts], chunk.end - chunk.start - 1))
        # [/task 6.5.2 writes]
        draft_read = read if slots.previous < 0 else slots.previous
        return replace(
            chunk,
            state_read_slot=read,
            draft_state_read_slot=draft_read,
            state_writes=tuple(writes),
        )

    def _place_checkpoints(self, chunk: Chunk, head: EngineRequest | None) -> list[tuple[int, int]]:
        if not self._has_checkpoints or chunk.end - chunk.start == 1:
            return []
        slots: RequestSlots = chunk.request.state_slots
        if head is not None:
            size, tokens = self._page_size, chunk.request.token_ids
            slots.branches.add(common_prefix(tokens, head.token_ids, size))
            slots.positions |= slots.branches
        first = (chunk.start // self._interval + 1) * self._interval
        optional = set(range(first, chunk.end, self._interval)) - slots.positions
        wanted = {position for position in slots.positions if chunk.start < position < chunk.end}
        placed = []
        for position in sorted(wanted | optional):
            slot = self.checkpoints.allocate(-math.inf if position in optional else math.inf)
            if slot >= 0:
                slots.reserved.append(slot)
                placed.append((position, slot))
        return placed

    def update(self, chunk: Chunk) -> None:
        """Applies a computed chunk: updates the request's state and adds checkpoints.

        Called after updating the request's computed count and sharing its full pages.
        """
        request = chunk.request
        slots: RequestSlots = request.state_slots
        by_position = {chunk.start + 1 + index: slot for index, slot in chunk.state_writes}
        self._free(slots.previous, slots.current if slots.next >= 0 else -1)
        slots.current = by_position.pop(request.num_computed)
        slots.next = slots.previous = -1
        slots.reserved.clear()
        if request.num_draft_uncomputed:
            slots.previous = by_position[request.num_computed - 1]
            self._allocator.share(slots.previous)
        for position, slot in by_position.items():
            self._add_checkpoint(request, position, slot)
        self._allocator.share(slots.current)
        self._add_checkpoint(request, request.num_computed, slots.current)

    def load_slot(self, request: EngineRequest) -> int:
        slots: RequestSlots = request.state_slots
        return slots.current if slots.next < 0 else slots.next

    def finish_load(self, chunk: Chunk) -> None:
        """Applies a chunk whose pages and final state have been read from disk."""
        request = chunk.request
        # Only checkpoints are stored on disk, so the state that was read is a checkpoint here, too.
        request.state_slots.positions.add(chunk.end)
        write = chunk.end - chunk.start - 1, self.load_slot(request)
        self.update(replace(chunk, state_writes=(write,)))

    def release(self, request: EngineRequest) -> None:
        slots: RequestSlots | None = request.state_slots
        if slots is None:
            return
        self._free(slots.current, slots.next, slots.previous, *slots.reserved)
        request.state_slots = None

    def _free(self, *slots: int) -> None:
        for slot in slots:
            if slot >= 0:
                self._allocator.free(slot)

    def _add_checkpoint(self, request: EngineRequest, position: int, slot: int) -> None:
        """Makes `slot` the checkpoint at `position`, or frees it if none is needed."""
        node = self._node_at(request, position)
        if node is None or node in self.checkpoints.by_node:
            self._allocator.free(slot)
            return
        slots: RequestSlots = request.state_slots
        is_rolling = position % self._interval > 0 and position not in slots.positions
        self.checkpoints.add(node, slot, is_rolling, position in slots.branches)

    def _node_at(self, request: EngineRequest, position: int) -> PrefixNode | None:
        depth, rest = divmod(position, self._page_size)
        if rest or depth > request.num_shared or position > request.num_computed:
            return None
        node: PrefixNode = request.last_node
        for _ in range(request.num_shared - depth):
            assert node.parent is not None
            node = node.parent
        return node

    def counts(self) -> StateSlotCounts:
        cached, free = len(self.checkpoints.evictable), self.checkpoints.num_free
        num_checkpoints = len(self.checkpoints.by_node)
        return StateSlotCounts(free, cached, self.num_used - cached, num_checkpoints)

    def check_integrity(self, running: Iterable[EngineRequest]) -> None:
        self._allocator.check_integrity()
        self.checkpoints.check_integrity()
        owners = [0] * self.num_slots
        for checkpoint in self.checkpoints.by_node.values():
            owners[checkpoint.slot] += 1
        assert max(owners) <= 1, "two checkpoints share a slot"
        for request in running:
            slots: RequestSlots = request.state_slots
            used = [slots.current, slots.next, slots.previous, *slots.reserved]
            used = [slot for slot in used if slot >= 0]
            assert len(set(used)) == len(used), f"{request} has a slot twice"
            for slot in used:
                owners[slot] += 1
        for slot, expected in enumerate(owners):
            actual = self._allocator.ref_count(slot)
            assert actual == expected, f"slot {slot} has {actual} owners instead of {expected}"
