"""On-demand allocation of KV memory: growth, size, bitwise equal results."""

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.support import CASES, run_cases
from tests.support import as_numpy, assert_same_bits, tiny_quantized_model
from tiny_llm import LLM, PagedStorage, Qwen3ModelWeek3, RaggedBatch
from tiny_llm.kernels.graph_capture import CapturedFunction

PAGE = 8


def one_token(position: int) -> RaggedBatch:
    """Batch of one token, in a sequence whose block table is 0, 1, 2, ..."""
    table = [list(range(position // PAGE + 1))]
    return RaggedBatch([position], [position], [0, 1], [position + 1], table)


@pytest.fixture(scope="module")
def model():
    # Graph capture requires quantized weights.
    return Qwen3ModelWeek3(tiny_quantized_model(max_position_embeddings=1024), PAGE)


def test_memory_grows_on_demand_up_to_the_budget():
    storage = PagedStorage(2, 100, 2, PAGE, 16, mx.float32)
    assert storage.nbytes == 0
    # Keys and values of 2 layers with 2 heads, head_dim 16, in float32.
    page_bytes = 2 * 2 * 2 * PAGE * 16 * 4
    capacities = []
    for position in range(100 * PAGE):
        storage.plan(one_token(position))
        capacities.append(len(storage.key_pages[0]))
        assert capacities[-1] > position // PAGE, "the token's page must be allocated"
        assert storage.nbytes == capacities[-1] * page_bytes
    # Capacity starts at 64 tokens, in pages of 8, and grows by 256 tokens or by half, whichever is
    # larger.
    assert sorted(set(capacities)) == [8, 40, 72, 100]
    storage.ensure_capacity(200)
    assert storage.nbytes == 100 * page_bytes


def test_allocation_covers_all_lower_pages():
    storage = PagedStorage(1, 1000, 2, PAGE, 16, mx.float32)
    storage.plan(RaggedBatch([0], [500 * PAGE], [0, 1], [1], [[500]]))
    assert len(storage.key_pages[0]) == 501
    arrays = mx.array([0]), mx.array([600 * PAGE]), mx.array([0, 1]), mx.array([1]), [[600]]
    storage.plan(RaggedBatch(*arrays))
    assert len(storage.key_pages[0]) == 501 + 250, "expected growth by half of the previous size"


def test_growing_keeps_written_pages(model):
    storage = model.create_paged_storage(100)
    ids = [5, 7, 11]
    batch = RaggedBatch([0, 1, 2], [0, 1, 2], [0, 3], [3], [[0]])
    mx.eval(model.ragged_logits(ids, batch, [], storage))
    before = [mx.array(pages[0]) for pages in (*storage.key_pages, *storage.value_pages)]
    storage.ensure_capacity(90)
    after = [pages[0] for pages in (*storage.key_pages, *storage.value_pages)]
    for old, new in zip(before, after, strict=True):
        assert as_numpy(old).any()
        assert_same_bits(new, old, "the first page")


def test_captured_graphs_follow_reallocated_pages(model):
    """Steps alternate between two storages, which grow at different times."""
    ids = np.random.default_rng(3).integers(0, 131, 120).tolist()
    storages = [model.create_paged_storage(100) for _ in range(2)]
    delays = [0, 37]
    cache = model.create_kv_cache()
    expected = [
        model.next_token_logits(mx.array([[token]]), position, cache)
        for position, token in enumerate(ids)
    ]
    for step in range(len(ids) + max(delays)):
        for storage, delay in zip(storages, delays, strict=True):
            position = step - delay
            if 0 <= position < len(ids):
                logits = model.ragged_logits([ids[position]], one_token(position), [0], storage)
                assert_same_bits(
                    logits, expected[position], f"token {position}, {delay} steps later"
                )
    assert {len(storage.key_pages[0]) for storage in storages} == {40}, (
        "expected each storage to have grown once"
    )
    if CapturedFunction.should_capture(mx.zeros((1, 1, 1))):
        recorded = model._run_planned._functions.values()
        assert all(function._is_capturable for function in recorded)


def test_growing_memory_is_bitwise_equal_to_reserved(demo):
    growing, ample = (LLM(demo, kv_cache_bytes=2**26, block_size=4) for _ in range(2))
    ample.reserve()
    config = ample.scheduler.config
    per_page = config.page_size * ample.runner.target.model.kv_bytes_per_token
    assert ample.runner.target.nbytes == config.num_pages * per_page
    assert growing.runner.target.nbytes == 0
    cases = range(len(CASES))
    actual, actual_logits = run_cases(growing, cases, 2)
    expected, expected_logits = run_cases(ample, cases, 2)
    assert 0 < growing.runner.target.nbytes < ample.runner.target.nbytes
    for case in cases:
        assert actual[case].token_ids == expected[case].token_ids
    assert actual_logits.keys() == expected_logits.keys()
    for key, row in expected_logits.items():
        np.testing.assert_array_equal(actual_logits[key], row, err_msg=str(key))


def test_memory_is_kept_and_reused(demo):
    llm = LLM(demo, kv_cache_bytes=2**26)
    sizes = []
    for _ in range(3):
        run_cases(llm, range(len(CASES)))
        sizes.append(llm.runner.target.nbytes)
    assert sizes[0] == sizes[-1]


def test_reserve_includes_the_draft_model(demo):
    llm = LLM(demo, kv_cache_bytes=2**24, draft_model="demo-draft")
    draft = llm.runner.draft.model
    assert (llm.runner.target.nbytes, draft.nbytes) == (0, 0)
    llm.reserve()
    assert 0.95 * 2**24 < llm.runner.target.nbytes + draft.nbytes <= 2**24
