"""Week 2, day 5: flash attention in Metal and in the model."""

import mlx.core as mx
import pytest

from tests.list_cache import ListCache
from tests.metal.attention import attend
from tests.ops.attention_problems import MASKS, assert_exact, exact, make_mask, problem
from tests.support import assert_close, assert_same_bits, tiny_model, tiny_quantized_model
from tests.week_2.test_day_4 import SHAPES
from tiny_llm import Qwen3ModelWeek2, kernels

METAL_SHAPES = SHAPES[:6]  # only six shapes, because the emulator is slow


# Runs first, because the emulator reports the line of a missing barrier or invalid address.
@pytest.mark.parametrize("mode", ["asan", "race"])
def test_task_3_no_memory_fault_or_race(mode):
    query, key, value = problem(1, 1, 2, 5, 41, 33)
    attend("readable", query, key, value, "causal", mode=mode)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("shape", METAL_SHAPES, ids=str)
def test_task_3_readable_metal_kernel(dtype, kind, shape):
    B, H, group, L, S, _ = shape
    query, key, value = problem(*shape, dtype)
    mask = make_mask(kind, B, H * group, L, S)
    solution = exact(query, key, value, shape[-1] ** -0.5, mask)
    actual = attend("readable", query, key, value, mask, order=("random", 1))
    assert_exact(actual, *solution)


def test_task_3_context_lens():
    query, key, value = problem(3, 2, 2, 3, 40, 64)
    lens = mx.array([0, 40, 17])
    actual = attend("readable", query, key, value, "causal", lens)
    options = {"causal": True, "context_lens": lens, "stream": mx.cpu}
    expected = kernels.flash_attention(query, key, value, **options)
    assert_close(actual, expected, "flash_attention_readable with context_lens", ulps=16)


IDS = [3, 17, 130, 0, 3, 99, 5, 41, 8, 77, 2]


def test_task_4_model_equals_model_without_flash_attention(dtype):
    mlx_model = tiny_model(dtype=dtype)
    grouped, flash = Qwen3ModelWeek2(mlx_model), Qwen3ModelWeek2(mlx_model, enable_flash_attn=True)
    expected = grouped(mx.array([IDS]), 0, grouped.create_kv_cache())
    actual = flash(mx.array([IDS]), 0, flash.create_kv_cache())
    assert_close(actual, expected, "logits with and without flash attention", ulps=32)


def test_task_4_custom_cache():
    model = Qwen3ModelWeek2(tiny_model(), enable_flash_attn=True)
    ours, theirs = model.create_kv_cache(), [ListCache() for _ in range(model.num_hidden_layers)]
    for start, end in ((0, 5), (5, 6), (6, 11)):
        ids = mx.array([IDS[start:end]])
        assert_same_bits(model(ids, start, theirs), model(ids, start, ours), f"tokens from {start}")


@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 7], [10, 1], [1, 9, 1]])
def test_task_4_logits_are_chunk_invariant(instruction_set, chunks):
    model = Qwen3ModelWeek2(tiny_quantized_model(), enable_flash_attn=True)
    expected = model(mx.array([IDS]), 0, model.create_kv_cache())
    mx.eval(expected)
    cache, offset, logits = model.create_kv_cache(), 0, []
    for length in chunks:
        logits.append(model(mx.array([IDS[offset : offset + length]]), offset, cache))
        mx.eval(logits)
        offset += length
    actual = mx.concatenate(logits, axis=1)
    assert_same_bits(actual, expected, f"logits with chunks {chunks}")
    last = model.next_token_logits(mx.array([IDS]), 0, model.create_kv_cache())
    assert_same_bits(last, expected[:, -1], "logits of the last token only")
