"""On-demand use of KV memory: size, release, bitwise equal results."""

import gc
import sys

import mlx.core as mx
import numpy as np
import pytest

from tests.engine.hybrid import write_hybrid
from tests.engine.support import CASES, assert_same_outputs, run_cases
from tests.support import address, assert_same_bits, resident_bytes_of, tiny_quantized_model
from tiny_llm import LLM, Qwen3ModelWeek3, RaggedBatch, SamplingParams, kernels
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


@pytest.mark.skipif(sys.platform != "linux", reason="memory is returned on Linux")
def test_reserved_rows_use_memory_only_while_they_have_contents():
    rows, row_bytes = 1000, 2**16
    x = kernels.reserve_zeros((rows, row_bytes // 2), mx.bfloat16)
    start = address(x)
    assert resident_bytes_of(x) < 2**21
    assert not x[5].any().item()
    kernels.extension().populate_rows(x, rows)
    assert resident_bytes_of(x) == rows * row_bytes
    x[3], x[999] = 7, 8
    mx.eval(x)
    assert address(x) == start, "the write copied the array"
    kernels.release_rows(x, [0, 1, 2, *range(4, 999)])
    assert resident_bytes_of(x) < 2**21
    assert [x[row].sum().item() for row in (2, 3, 4, 999)] == [0, 7 * 2**15, 0, 8 * 2**15]
    assert memoryview(mx.view(x, mx.uint8)).nbytes == rows * row_bytes  # type: ignore[arg-type]


def number_of_mappings() -> int:
    with open("/proc/self/maps") as file:
        return len(file.readlines())


def test_reserved_memory_does_not_count_toward_mlx_limit(on_cpu):
    """Above its limit, MLX evaluates graphs much more slowly."""

    def memory_limit() -> int:
        limit = mx.set_memory_limit(2**40)
        mx.set_memory_limit(limit)
        return limit

    before = memory_limit()
    reserved = kernels.reserve_zeros((4, 2**20), mx.bfloat16)
    assert memory_limit() - before >= reserved.nbytes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")
def test_mappings_do_not_accumulate(demo, tmp_path):
    hybrid = str(write_hybrid(tmp_path / "model"))

    def serve(llm):
        llm.generate([[9] * 300], SamplingParams(temperature=0, max_tokens=2))

    def new_engines():
        for name in (demo, hybrid):
            serve(LLM(name, kv_cache_bytes=2**26))
        gc.collect()

    kept = LLM(demo, kv_cache_bytes=2**26)

    def low_memory():
        serve(kept)
        kept.release_cached_memory()

    for repeat in (new_engines, low_memory):
        for _ in range(5):
            repeat()
        before = number_of_mappings()
        for _ in range(50):
            repeat()
        assert number_of_mappings() - before < 20


def test_captured_graphs_follow_the_storage(model):
    """Steps alternate between two storages."""
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
    assert_same_outputs(actual, actual_logits, (expected, expected_logits))
    assert actual_logits.keys() == expected_logits.keys()
