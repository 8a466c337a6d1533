"""Week 5, day 7, optional: prefix-aware routing over replicas."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="needs the server's dependencies")

from tests.support import assert_equal
from tiny_llm.server.replicas import routing
from tiny_llm.server.replicas.gateway import ReplicaLostError, ReplicaRequest, RoutedReplicaPool
from tiny_llm.server.replicas.routing import (
    CHUNK_LENGTH,
    PrefixAwareRouter,
    PrefixIndex,
    chunk_hashes,
    routing_key,
)

A, B, C, D = (letter * CHUNK_LENGTH for letter in "abcd")  # texts of one chunk each
TURN = [{"role": "user", "content": "What is two?"}]


def key_of(**body: Any) -> str:
    return routing_key(json.dumps(body).encode())


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"prompt": "Once upon"}, "Once upon"),
        ({"prompt": [1, 22, 3]}, "1 22 3"),
        ({"messages": [{"role": "system", "content": "S"}, {"content": "U"}]}, "S U"),
        ({"input": [{"content": [{"type": "input_text", "text": "I"}, {"text": "J"}]}]}, "I J"),
        ({"messages": [{"content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}, ""),
        ({"prompt": True, "messages": None, "temperature": 0}, ""),
    ],
    ids=["text", "tokens", "chat", "parts", "no text", "no prompt"],
)
def test_task_1_key_of_each_protocol(body, expected):
    assert_equal(key_of(**body), expected)


def test_task_1_key_of_a_conversation():
    """The `system` field comes first in the prompt, even if last in the body."""
    first = key_of(system="S", messages=TURN)
    last = key_of(messages=TURN, system="S")
    assert first == last == "S\nWhat is two?", f"expected the system message first, got {last!r}"
    first = key_of(model="demo", messages=TURN, temperature=0)
    turns = [*TURN, {"role": "assistant", "content": "2"}, {"role": "user", "content": "And 3?"}]
    second = key_of(temperature=1, messages=turns, stream=True)
    assert_equal(second, first + " 2 And 3?", f"the key to start with {first!r}")
    one, other = key_of(prompt=[1, 22]), key_of(prompt=[12, 2])
    assert one != other, f"expected different keys, got {one!r} for both"
    # A body that the JSON parser accepts must not exceed the recursion limit.
    assert_equal(routing_key(b'{"prompt": ' + b"[" * 900 + b'"x"' + b"]" * 900 + b"}"), "x")


@pytest.mark.parametrize(
    "length", [0, CHUNK_LENGTH - 1, CHUNK_LENGTH, CHUNK_LENGTH + 1, 3 * CHUNK_LENGTH]
)
def test_task_2_whole_pieces_have_hashes(length):
    hashes = chunk_hashes("x" * length)
    assert_equal(
        len(hashes), length // CHUNK_LENGTH, f"the number of hashes of {length} characters"
    )


def test_task_2_hash_depends_on_preceding_pieces():
    longer = chunk_hashes(A + B + "rest")
    assert_equal(longer, chunk_hashes(A + B), "equal hashes, as a partial chunk is not hashed")
    both = set(chunk_hashes(A + C)) & set(chunk_hashes(B + C))
    assert not both, f"expected no common hashes of AC and BC, got {len(both)}"
    repeated = set(chunk_hashes(A * 3))
    assert len(repeated) == 3, f"expected three hashes of AAA, got {len(repeated)}"


def test_task_2_each_piece_is_hashed_once(monkeypatch):
    num_hashed = 0

    def num_characters(value: Any) -> int:
        if isinstance(value, tuple):
            return sum(map(num_characters, value))
        return len(value) if isinstance(value, str) else 0

    def counting_hash(value: Any) -> int:
        nonlocal num_hashed
        num_hashed += num_characters(value)
        return hash(value)

    monkeypatch.setattr(routing, "hash", counting_hash, raising=False)
    key = "".join(f"{index:{CHUNK_LENGTH}}" for index in range(50))
    chunk_hashes(key)
    hint = "hash each chunk once, with the hash of the previous chunk"
    assert num_hashed <= len(key), f"{hint}: expected at most {len(key)}, got {num_hashed}"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (A + B + C, 3),
        (A + B + D, 2),
        (A + D + C, 1),
        (B + C, 0),
        (A + B[:-1], 1),
        (A + B + C + D, 3),
        ("", 0),
    ],
    ids=["all", "two", "one", "not from the start", "part of a chunk", "longer", "empty"],
)
def test_task_2_match_is_the_longest_known_prefix(key, expected):
    index = PrefixIndex(10)
    index.insert(A + B + C)
    assert_equal(index.match(key), expected * CHUNK_LENGTH, f"{expected * CHUNK_LENGTH} characters")


def test_task_2_eviction():
    index = PrefixIndex(2)
    for key in (A, B, A, C):
        index.insert(key)
    assert index.num_chunks == 2, f"expected 2 chunks, the capacity, got {index.num_chunks}"
    found = [index.match(key) // CHUNK_LENGTH for key in (A, B, C)]
    assert found == [1, 0, 1], f"expected A and C to remain, got {found} chunks of A, B, C"
    index = PrefixIndex(3)
    index.insert(A + B + C)
    index.insert(D)
    left = index.match(A + B + C) // CHUNK_LENGTH
    assert left == 2, f"expected the first two of three chunks to remain, got a match of {left}"
    index = PrefixIndex(2)
    index.insert(A + B + C + D)
    assert_equal(index.match(A + B + C + D) // CHUNK_LENGTH, 2, "a match of 2 chunks, the capacity")
    index = PrefixIndex(2)
    index.insert(A)
    index.insert(B)
    index.match(A)
    index.insert(C)
    assert index.match(A) == 0, "expected A to be evicted, as `match` does not count as use"


def router_with(*keys: str, **options: Any) -> PrefixAwareRouter:
    """A router that has routed key i to replica i."""
    router = PrefixAwareRouter(100, **options)
    for replica, key in enumerate(keys):
        router.choose(key, {replica: 0})
    return router


def assert_chosen(router: PrefixAwareRouter, key: str, loads: dict[int, int], expected: int):
    assert_equal(router.choose(key, loads), expected, f"replica {expected} (loads {loads})")


def test_task_3_match_then_load():
    assert_chosen(router_with(A + B, A + B + C, A), A + B + C + D, {0: 0, 1: 2, 2: 0}, 1)
    router = router_with(A, B, C)
    assert_chosen(router, D, {0: 3, 1: 1, 2: 2}, 1)
    assert_chosen(router, "", {0: 3, 1: 2, 2: 1}, 2)
    assert_chosen(router_with(A + B + C, A, A + B), D, {0: 1, 1: 1, 2: 1}, 1)


@pytest.mark.parametrize(
    ("loads", "expected"),
    [({0: 4, 1: 0}, 0), ({0: 5, 1: 0}, 1), ({0: 7, 1: 4}, 0), ({0: 9, 1: 4}, 1)],
    ids=["at the limit", "too busy", "both busy", "both busy, one over the limit"],
)
def test_task_3_too_busy_replica_is_not_chosen(loads, expected):
    assert_chosen(router_with(A + B, max_imbalance=4), A + B, loads, expected)


def test_task_3_short_match_does_not_count():
    """A common system message must not route all conversations to one replica."""
    router = router_with(A, min_match=0.5)
    assert_chosen(router, A + B + C, {0: 1, 1: 0}, 1)
    router = router_with(A + B, min_match=0.5)
    assert_chosen(router, A + B + C + D, {0: 1, 1: 0}, 0)


def test_task_3_memory_of_choices():
    """Requests with the same new prompt share a replica before the first starts."""
    router = PrefixAwareRouter(100)
    assert_chosen(router, A + B, {0: 1, 1: 0}, 1)
    assert_chosen(router, A + B, {0: 1, 1: 1}, 1)
    assert_chosen(router, A + B, {0: 1, 1: 2}, 1)
    router = router_with(A + B)
    assert_chosen(router, A + B, {0: 1, 1: 0}, 0)
    assert_chosen(router, A + B, {0: 1, 1: 0, 2: 0}, 0)
    assert_chosen(router_with(A, B, C), C, {0: 0, 1: 0}, 0)


def test_task_3_conversations_stay_and_are_balanced():
    router, homes = PrefixAwareRouter(1000), dict[int, list[int]]()
    for turn in range(1, 5):
        for user in range(6):
            key = A + "".join(f"{user}, {turn}. ".ljust(2 * CHUNK_LENGTH) for turn in range(turn))
            homes.setdefault(user, []).append(router.choose(key, {0: 0, 1: 0}))
    moved = {user: chosen for user, chosen in homes.items() if len(set(chosen)) > 1}
    assert not moved, f"expected each conversation on one replica, got {moved}"
    on_first = sum(chosen[0] == 0 for chosen in homes.values())
    assert on_first == 3, f"expected 3 of 6 conversations on replica 0, got {on_first}"


class ScriptedReplica:
    """Fake replica: yields bodies, raises exceptions, awaits `resume` at None."""

    def __init__(self, *steps: Any):
        self.steps = steps
        self.resume = asyncio.Event()
        self.num_requests = self.num_closed = 0

    async def handle_request(self, request: ReplicaRequest) -> Any:
        self.num_requests += 1
        try:
            for step in self.steps:
                if step is None:
                    await self.resume.wait()
                elif isinstance(step, Exception):
                    raise step
                else:
                    yield [{"type": "http.response.body", "body": step}]
        finally:
            self.num_closed += 1


class RecordingRouter:
    """Chooses the first replica; records calls."""

    def __init__(self) -> None:
        self.choices: list[tuple[str, dict[int, int]]] = []
        self.forgotten: list[int] = []

    def choose(self, key: str, loads: Any) -> int:
        self.choices.append((key, dict(loads)))
        return min(loads)

    def forget(self, replica: int) -> None:
        self.forgotten.append(replica)


def pool_of(*replicas: ScriptedReplica) -> tuple[RoutedReplicaPool, RecordingRouter]:
    router = RecordingRouter()
    return RoutedReplicaPool(replicas, router), router


def stream(pool: RoutedReplicaPool, prompt: str = "Once") -> Any:
    return pool.stream(ReplicaRequest({"type": "http"}, b"", prompt))


async def bodies(batches: Any) -> list[bytes]:
    return [message["body"] async for batch in batches for message in batch]


async def test_task_4_response_is_streamed_and_counted():
    replica = ScriptedReplica(b"1", None, b"2")
    pool, router = pool_of(replica, ScriptedReplica())
    batches = stream(pool)
    first = await anext(batches)
    assert first[0]["body"] == b"1", f"expected the first body immediately, got {first}"
    assert pool.loads == {0: 1, 1: 0}, f"expected one request in flight, got {pool.loads}"
    replica.resume.set()
    assert_equal(await bodies(batches), [b"2"])
    assert pool.loads == {0: 0, 1: 0}, f"expected no request in flight, got {pool.loads}"
    assert_equal(router.choices, [("Once", {0: 0, 1: 0})], "the request's key")


async def test_task_4_requests_that_end_early():
    """If the client disconnects, the gateway closes the response generator."""
    replica = ScriptedReplica(b"1", None, b"2")
    pool, router = pool_of(replica)
    batches = stream(pool)
    await anext(batches)
    await batches.aclose()
    assert pool.loads == {0: 0}, f"expected no request in flight, got {pool.loads}"
    assert replica.num_closed == 1, "expected the replica's generator to be closed once"
    assert router.forgotten == [], f"expected no lost replica, got {router.forgotten}"
    # An internal error of a replica does not mean that the replica is lost.
    pool, router = pool_of(ScriptedReplica(RuntimeError("internal error")))
    with pytest.raises(RuntimeError, match="internal error"):
        await bodies(stream(pool))
    assert pool.loads == {0: 0}, f"expected no request in flight, got {pool.loads}"
    assert router.forgotten == [], f"expected no lost replica, got {router.forgotten}"


async def test_task_4_lost_replica_gets_no_further_requests():
    lost, other = ScriptedReplica(ReplicaLostError()), ScriptedReplica(b"2")
    pool, router = pool_of(lost, other)
    with pytest.raises(ReplicaLostError):
        await bodies(stream(pool))
    assert pool.loads == {1: 0}, f"expected only replica 1 in the pool, got {pool.loads}"
    assert_equal(router.forgotten, [0], "replica 0 to be forgotten")
    assert_equal(await bodies(stream(pool)), [b"2"], "the other replica's response")
    number = pool.add(ScriptedReplica(b"3"))
    assert_equal((number, pool.loads), (2, {1: 0, 2: 0}), "replica 2 and no load")


async def test_task_4_lost_replica_fails_all_its_requests():
    lost = ScriptedReplica(b"1", None, ReplicaLostError())
    pool, _ = pool_of(lost)
    both = [stream(pool), stream(pool)]
    for batches in both:
        await anext(batches)
    assert pool.loads == {0: 2}, f"expected two requests in flight, got {pool.loads}"
    lost.resume.set()
    results = await asyncio.gather(*map(bodies, both), return_exceptions=True)
    kinds = [type(result).__name__ for result in results]
    assert_equal(kinds, ["ReplicaLostError"] * 2, "both requests' errors")
    assert pool.loads == {}, f"expected an empty pool, got {pool.loads}"


async def test_task_4_new_requests_see_requests_in_flight():
    """Requests without a first token count as load."""
    replicas = [ScriptedReplica(None, b"1") for _ in range(2)]
    pool = RoutedReplicaPool(replicas, PrefixAwareRouter(100, max_imbalance=1))
    responses = [asyncio.create_task(bodies(stream(pool, A + B))) for _ in range(3)]
    await asyncio.sleep(0)
    for replica in replicas:
        replica.resume.set()
    await asyncio.gather(*responses)
    counts = [replica.num_requests for replica in replicas]
    assert counts == [2, 1], f"expected 2 and 1 requests on the replicas, got {counts}"
