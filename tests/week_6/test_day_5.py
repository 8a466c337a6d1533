"""Week 6, day 5, optional: recurrent state checkpoints in the prefix tree."""

import math
from typing import Any

import mlx.core as mx
import pytest

from tests.engine.hybrid import CONFIG, build
from tests.engine.scheduler_harness import add, scheduler, step
from tests.support import assert_equal
from tiny_llm import SamplingParams, load
from tiny_llm.engine.scheduling.checkpoints import Checkpoint, Checkpoints
from tiny_llm.engine.scheduling.page_allocator import PageAllocator
from tiny_llm.engine.scheduling.prefix_cache import PrefixNode
from tiny_llm.engine.scheduling.request import Chunk, EngineRequest, SchedulerOutput
from tiny_llm.engine.scheduling.scheduler import Scheduler
from tiny_llm.engine.scheduling.state_slots import (
    RequestSlots,
    StateSlots,
    cached_prefix,
    prompt_end_positions,
)
from tiny_llm.models.checkpoint.dummy import random_checkpoint

pytestmark = pytest.mark.usefixtures("on_cpu")


def extend(node: PrefixNode, num_pages: int, first: int = 0) -> list[PrefixNode]:
    """Appends a chain of one-token pages to a node; returns their nodes."""
    path = []
    for token in range(first, first + num_pages):
        child = PrefixNode(node, (token,), token)
        node.children[child.tokens] = child
        path.append(child)
        node = child
    return path


def tree_of(num_pages: int, num_slots: int = 4) -> tuple[list[PrefixNode], Checkpoints, Any]:
    """A path of pages, an empty checkpoint table and its slot allocator."""
    allocator = PageAllocator(num_slots)
    return extend(PrefixNode(None, (), -1), num_pages), Checkpoints(allocator), allocator


def root_of(node: PrefixNode) -> PrefixNode:
    return node if node.parent is None else root_of(node.parent)


def put_checkpoint(
    checkpoints: Checkpoints, node: PrefixNode, pages: int = 1, priority: int = 0
) -> Checkpoint:
    checkpoint = Checkpoint(checkpoints.allocate(), pages, False, priority, root_of(node))
    checkpoints.by_node[node] = checkpoint
    return checkpoint


@pytest.mark.parametrize(
    ("depths", "expected"), [([], 0), ([1], 1), ([2, 4], 4), ([6], 6), ([1, 3], 3)], ids=str
)
def test_task_1_hit_ends_at_the_last_checkpoint(depths, expected):
    path, checkpoints, _ = tree_of(6)
    for depth in depths:
        put_checkpoint(checkpoints, path[depth - 1])
    assert_equal(checkpoints.last(path), expected, f"pages of a hit with states after {depths}")


def test_task_1_hits_of_checkpoints():
    path, checkpoints, _ = tree_of(3)
    put_checkpoint(checkpoints, extend(path[1], 1, first=50)[0])
    assert_equal(checkpoints.last(path), 0, "0 pages (the only checkpoint is in another branch)")
    path, checkpoints, allocator = tree_of(3)
    checkpoint = put_checkpoint(checkpoints, path[2])
    slot = checkpoints.hit(path[2])
    assert slot == checkpoint.slot, f"expected slot {checkpoint.slot}, got {slot}"
    owners = allocator.ref_count(slot)
    assert owners == 2, f"expected two owners, the tree and the request, got {owners}"
    assert checkpoint.num_hits == 1, f"expected one hit, got {checkpoint.num_hits}"
    assert path[2] not in checkpoints.evictable
    path, checkpoints, _ = tree_of(3)
    checkpoint = put_checkpoint(checkpoints, path[2], pages=5, priority=5)
    checkpoints._clock = 30
    checkpoints.hit(path[2])
    assert_equal(checkpoint.priority, 35, "priority 35 (5 pages, used at clock 30)")


def running_request(states: StateSlots, num_tokens: int, num_computed: int = 0) -> EngineRequest:
    request = EngineRequest("r", list(range(num_tokens)), SamplingParams())
    request.num_computed = num_computed
    request.state_slots = RequestSlots(current=states._allocator.allocate()[0])
    return request


def plan_chunk(
    states: StateSlots, request: EngineRequest, start: int, end: int, drafts: int = 0
) -> Chunk:
    step_output = SchedulerOutput(0, (Chunk(request, start, end, drafts, samples=False),))
    return states.plan(step_output, None).chunks[0]


@pytest.mark.parametrize("is_checkpoint", [True, False])
def test_task_2_checkpoint_is_not_overwritten(monkeypatch, is_checkpoint):
    states = StateSlots(4, 4, enable_prefix_caching=True)
    request = running_request(states, 12, num_computed=8)
    slots = request.state_slots
    [request.last_node] = extend(PrefixNode(None, (), -1), 1)
    if is_checkpoint:
        states._allocator.share(slots.current)
        checkpoint = Checkpoint(slots.current, 1, False, 1, request.last_node.parent)
        states.checkpoints.by_node[request.last_node] = checkpoint
    else:
        monkeypatch.setattr(states, "_allocate_next", lambda request: 3)
    states.begin_step([request], [])
    if not is_checkpoint:
        assert slots.next == -1, f"expected no next slot for an unshared slot, got {slots.next}"
        return
    before, hint = slots.next, f"expected another slot than {slots.current}, a checkpoint"
    assert before not in (-1, slots.current), f"{hint}, for the next state, got {before}"
    states.begin_step([request], [])
    assert slots.next == before, f"expected slot {before} to be kept, got {slots.next}"
    chunk = plan_chunk(states, request, 8, 9)
    assert_equal(chunk.state_read_slot, slots.current, "the state to be read from")
    assert_equal(chunk.state_writes, ((0, slots.next),), "the state after token 0 in this slot")


def test_task_2_new_sequence_starts_from_zeros():
    states = StateSlots(4, 4, enable_prefix_caching=False)
    request = running_request(states, 6)
    slot = request.state_slots.current
    for start, end, read in ((0, 3, -1), (3, 5, slot), (5, 6, slot)):
        chunk = plan_chunk(states, request, start, end)
        assert_equal(chunk.state_read_slot, read, f"to read slot {read} (tokens {start} to {end})")
        expected = ((end - start - 1, slot),)
        assert_equal(chunk.state_writes, expected, f"writes {expected} (tokens {start} to {end})")


def test_task_2_states_after_draft_tokens():
    """States after all draft tokens are written, as acceptance is known later."""
    states = StateSlots(6, 4, enable_prefix_caching=False)
    request = running_request(states, 9, num_computed=8)
    slots = request.state_slots
    assert states.reserve_drafts(request, 2) == 2
    first, second = slots.reserved
    chunk = plan_chunk(states, request, 8, 9, drafts=2)
    expected = ((0, slots.current), (1, first), (2, second))
    assert chunk.state_writes == expected, f"expected writes {expected}, got {chunk.state_writes}"


def test_task_2_checkpoints_inside_a_chunk():
    """The state at position p is the state after token p − 1 of the prompt."""
    states = StateSlots(6, 4, enable_prefix_caching=True)
    request = running_request(states, 30, num_computed=8)
    request.state_slots.positions = {12, 20}
    chunk = plan_chunk(states, request, 8, 26)
    indices = [index for index, _ in chunk.state_writes]
    hint = "the chunk's tokens with states (tokens 8 to 25, checkpoints at 12 and 20)"
    assert_equal(indices, [3, 11, 17], hint)
    slots = [slot for _, slot in chunk.state_writes]
    assert len(set(slots)) == 3, f"expected three different slots, got {slots}"


@pytest.mark.parametrize(
    ("num_tokens", "page_size", "expected"),
    [
        (100, 32, {64, 96}),  # 96 is unusable if the next turn changes the last 5 tokens
        (125, 32, {96}),
        (129, 32, {96, 128}),
        (128, 32, {96}),  # no hit ends at 128, because the last token is always computed
        (112, 32, {96}),  # 96 is usable even if the next turn changes the last 16
        (111, 32, {64, 96}),
        (40, 16, {16, 32}),
    ],
)
def test_task_3_positions_at_the_prompt_end(num_tokens, page_size, expected):
    actual, hint = (
        prompt_end_positions(num_tokens, page_size),
        f"checkpoints of {num_tokens} tokens",
    )
    assert_equal(actual, expected, f"{hint} in pages of {page_size}")


@pytest.mark.parametrize(
    ("tokens", "hit", "expected"),
    [
        ([0, 1, 2, 3, 4, 9], 0, 5),
        ([0, 1, 2, 3, 4, 9], 2, 5),
        ([0, 1, 2, 3, 4], 0, 4),  # at least one token must be computed
        ([0, 1, 8, 8, 8], 1, 2),
        ([8, 1, 2], 0, 0),
        ([0, 1, 50, 51, 9], 0, 4),
    ],
    ids=str,
)
def test_task_3_branch_is_where_cached_pages_end(tokens, hit, expected):
    root = PrefixNode(None, (), -1)
    path = extend(root, 5)
    extend(path[1], 2, first=50)
    node = path[hit - 1] if hit else root
    hint = f"tokens of {tokens} with pages [0, 1, 2, 3, 4] or [0, 1, 50, 51] after a hit of {hit}"
    assert_equal(cached_prefix(tokens, node, hit, 1), expected, hint)


def test_task_4_value_is_the_number_of_pages_to_recompute():
    path, checkpoints, allocator = tree_of(9)
    for depth, expected in ((3, 3), (8, 5), (9, 1), (5, 2)):
        checkpoints.add(path[depth - 1], allocator.allocate()[0], False, False)
        actual = checkpoints.by_node[path[depth - 1]].pages
        assert_equal(actual, expected, f"the value in pages of a checkpoint after page {depth}")


def full_table(*values: int) -> tuple[list[PrefixNode], Checkpoints, Any]:
    """Branches with the given page counts, each with a checkpoint; no free slot."""
    _, checkpoints, allocator = tree_of(0, len(values))
    root = PrefixNode(None, (), -1)
    nodes = [extend(root, value, first=100 * i)[-1] for i, value in enumerate(values)]
    for node in nodes:
        checkpoints.add(node, allocator.allocate()[0], False, False)
    return nodes, checkpoints, allocator


def test_task_4_lowest_value_is_evicted():
    nodes, checkpoints, _ = full_table(7, 2, 5)
    checkpoints.allocate()
    kept = [i for i, node in enumerate(nodes) if node in checkpoints.by_node]
    assert kept == [0, 2], f"values 7, 2, 5: expected checkpoints 0 and 2, got {kept}"
    nodes, checkpoints, _ = full_table(7, 2)
    checkpoints._clock = 30
    checkpoints.allocate()
    assert_equal(checkpoints._clock, 30, "clock 30 (eviction at priority 2, below the clock)")
    assert nodes[1] not in checkpoints.by_node, "expected the lowest priority to be evicted"


@pytest.mark.parametrize(("below", "can_evict"), [(2, False), (3, True), (-math.inf, False)])
def test_task_4_eviction_requires_a_lower_priority(below, can_evict):
    _, checkpoints, _ = full_table(7, 2, 5)
    slot = checkpoints.allocate(below=below)
    assert_equal(slot >= 0, can_evict, f"eviction with lowest priority 2 and below={below}")
    expected = 2 if can_evict else 3
    assert_equal(len(checkpoints.by_node), expected, f"{expected} checkpoints (below={below})")


def test_task_4_unused_checkpoints_age():
    """An unused checkpoint of a long prompt is eventually evicted."""
    nodes, checkpoints, _ = full_table(20, 20, 1)
    root = root_of(nodes[0])
    for turn in range(60):
        if turn % 5 == 0:
            checkpoints._allocator.free(checkpoints.hit(nodes[0]))
        short = extend(root, 1, first=1_000 + turn)[0]
        slot = checkpoints.allocate()
        assert slot >= 0
        checkpoints.add(short, slot, False, False)
    assert nodes[0] in checkpoints.by_node, "expected the used checkpoint to be kept"
    unused = nodes[1] in checkpoints.by_node
    assert not unused, "expected 60 newer checkpoints to replace an unused one that saves 20 pages"


def test_task_4_next_checkpoint_inherits_the_pages():
    path, checkpoints, allocator = tree_of(9)
    other = extend(path[0].parent, 4, first=50)  # type: ignore[arg-type]
    for node in (path[2], path[7], other[3]):
        checkpoints.add(node, allocator.allocate()[0], False, False)
    checkpoints.discard(path[2])
    for node, expected in ((path[7], 8), (other[3], 4)):
        checkpoint = checkpoints.by_node[node]
        actual = checkpoint.pages, checkpoint.priority
        assert_equal(actual, (expected, expected), "value and priority without the first one")
    checkpoints.check_integrity()


def serve(sched: Scheduler, name: str, prompt: list[int], max_tokens: int = 1) -> EngineRequest:
    request: EngineRequest = add(sched, name, len(prompt), max_tokens)
    request.token_ids[:] = prompt
    while not request.is_done:
        step(sched)
    return request


def test_task_4_every_turn_continues_from_the_previous_one():
    """Turns hit the previous prompt, though its generation prompt is dropped."""
    sched = scheduler(num_state_slots=6, page_size=16, num_pages=200, max_seq_len=900)
    history: list[int] = list(range(1_000, 1_030))
    expected = 0
    for turn in range(8):
        actual = serve(sched, f"turn {turn}", [*history, *[5] * 8]).num_cached_tokens
        hint = f"cached tokens of turn {turn}, after a prompt whose last 8 tokens are dropped"
        assert_equal(actual, expected, hint)
        expected = len(history) // 16 * 16
        history += range(2_000 + 100 * turn, 2_040 + 100 * turn)


def test_task_4_shared_system_prompt_is_computed_at_most_twice():
    """The third request hits a checkpoint where the first two prompts diverge."""
    sched = scheduler(num_state_slots=9, page_size=4, num_pages=100, max_num_batched_tokens=64)
    system = list(range(17))
    requests = [serve(sched, name, system + [50 + n] * 40) for n, name in enumerate("abc")]
    cached = [request.num_cached_tokens for request in requests]
    assert_equal(cached, [0, 0, 16], "cached tokens")


def test_task_4_second_turn_equals_a_cold_run():
    model: Any = random_checkpoint(CONFIG), load("demo")[1]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    first = list(range(100, 170))
    second = [*first, *range(300, 340)]
    mx.random.seed(0)
    warm, cold = build(model, block_size=8), build(model, block_size=8)
    warm.generate([first], params)
    [expected], [output] = cold.generate([second], params), warm.generate([second], params)
    warm.scheduler.check_integrity()
    assert_equal(output.num_cached_tokens, 64, "cached tokens of the prompt's full pages")
    assert_equal(output.token_ids, expected.token_ids, "the cold run's output")
