"""Week 4, day 3: prepacked weights and prefetching."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.ops.quantized_matmul_problems import (
    HALVES,
    assert_exact_but_for_rounding,
    assert_rows_are_batch_invariant,
    evaluated,
    problem,
)
from tests.support import assert_close, assert_equal, tiny_model
from tests.week_4.kernel_selection import R, kernel_fixture, matmul_cases, prepacked_args
from tiny_llm import Qwen3ModelWeek2, kernels
from tiny_llm.kernels.prepack import prepack_weight, to_row_major
from tiny_llm.kernels.roofline import Timings, best_prefetch_distance, bytes_in_flight

SHAPES = [(1, 128, 64), (2, 384, 32), (3, 1024, 160)]  # rows, inputs, outputs


prepacked = kernel_fixture("TINY_LLM_MATMUL", "prepacked")
prefetched = kernel_fixture("TINY_LLM_MATMUL", "prefetched")


def test_task_1_first_words_of_rows_are_adjacent():
    matrix = mx.arange(8, dtype=mx.uint32).reshape(4, 2)  # rows 0 1, 2 3, 4 5, 6 7
    actual = prepack_weight(matrix, 2).reshape(-1).tolist()
    assert_equal(actual, [0, 2, 1, 3, 4, 6, 5, 7], "words of two rows interleaved")


@pytest.mark.parametrize("dtype", [mx.uint32, *HALVES], ids=str)
def test_task_1_pack_and_unpack_round_trip(dtype):
    matrix = mx.arange(96 * 5).reshape(96, 5).astype(dtype)
    packed = prepack_weight(matrix, R)
    assert packed.shape == (3, 5, R)
    assert packed.dtype == dtype
    unpacked, whole = (x.astype(mx.float32) for x in (to_row_major(packed), matrix))
    assert_close(unpacked, whole, "unpacked matrix", ulps=0)
    assert packed[2, 4, 7].item() == matrix[2 * R + 7, 4].item(), "expected word 4 of row 71"


@matmul_cases(SHAPES)
def test_task_2_is_exact_up_to_rounding(prepacked, bits, group_size, half, shape):
    args = problem(*shape, bits, group_size, half)
    assert_exact_but_for_rounding("portable", args, prepacked_args(*args))


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_task_2_scales_of_a_different_dtype(prepacked, half):
    args = problem(2, 256, 64, 4, 128, half, scale_dtype=HALVES[half == mx.bfloat16])
    assert_exact_but_for_rounding("portable", args, prepacked_args(*args))


def test_task_2_each_output_uses_its_scales(prepacked):
    """With all weights and activations 1, each output is (scale + bias) · I."""
    O, I = 64, 128
    words = mx.full((O, I // 8), 0x11111111, dtype=mx.uint32)
    scales = mx.arange(O).reshape(O, 1).astype(mx.bfloat16)
    biases = (mx.arange(O).reshape(O, 1) % 4).astype(mx.bfloat16)
    args = prepacked_args(scales, biases, 128, 4, mx.ones((1, I), dtype=mx.bfloat16), words)
    expected = ((scales + biases) * I).reshape(1, O)
    assert_close(evaluated(*args), expected, "(scale + bias) · I of each output", ulps=1)


def test_task_2_scale_term_is_added_before_bias(prepacked):
    """Halves of the groups cancel, so only rounding errors remain.

    Sums within a group are exact integers in float32, in any order.
    """
    O, half, size = 64, 4, 64  # a row has 2 · half groups of `size` weights
    words = mx.random.randint(0, 2**31 - 1, (O, half * size // 8)).astype(mx.uint32)
    row = mx.random.randint(-127, 128, (1, half * size)).astype(mx.bfloat16)
    # Magnitudes differ so much that sums are rounded.
    added = mx.random.normal((2, O, half)) * 2.0 ** mx.random.randint(0, 12, (2, O, half))
    scales, biases = mx.concatenate([added, -added], axis=2).astype(mx.bfloat16)
    a, b = mx.concatenate([row, row], axis=1), mx.concatenate([words, words], axis=1)
    integers = np.array(b)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    activations = np.array(a.astype(mx.float32)).reshape(2 * half, size)
    products = (integers.reshape(O, 2 * half, size) * activations).sum(axis=-1)
    total = np.zeros(O)
    # Emulates a fused multiply-add: exact product in float64, one rounding to float32.
    for g in range(2 * half):
        for factor, part in ((scales, products[:, g]), (biases, activations[g].sum())):
            of_group = np.array(factor[:, g].astype(mx.float32), dtype=np.float64)
            total = (total + of_group * part).astype(np.float32).astype(np.float64)
    expected = mx.array(total.astype(np.float32))[None].astype(mx.bfloat16)
    actual = evaluated(*prepacked_args(scales, biases, size, 4, a, b))
    assert_close(actual, expected, "fma(scale, …), then fma(bias, …) after each group", ulps=0)


@pytest.mark.parametrize("bits", [4, 8])
def test_task_2_rows_are_batch_invariant(prepacked, bits):
    args = prepacked_args(*problem(9, 384, 96, bits, 64, mx.bfloat16))
    assert_rows_are_batch_invariant(*args)


def test_task_2_leftover_outputs_use_the_row_major_kernel(prepacked):
    assert kernels.prepack_rows() == R
    assert_exact_but_for_rounding("portable", problem(2, 256, 33, 4, 128, mx.bfloat16))


def test_task_2_model_uses_prepacked_weights(prepacked):
    mlx_model = tiny_model(mx.bfloat16, hidden_size=128, intermediate_size=256)
    nn.quantize(mlx_model, group_size=64, bits=4)
    tokens = mx.array([[1, 2, 3]])
    model = Qwen3ModelWeek2(mlx_model)
    actual = model(tokens, 0, model.create_kv_cache())
    words = model.layers[0].mlp.w_down.weight
    assert words.ndim == 3, f"expected words of 32 rows interleaved, got shape {words.shape}"
    assert_close(actual, mlx_model(tokens), "mlx_lm's logits", ulps=16)


@pytest.mark.parametrize("ahead", ["0", "4096", "1000000"])
@pytest.mark.parametrize("bits", [4, 8])
def test_task_3_prefetch_changes_no_bits(prefetched, monkeypatch, ahead, bits):
    args = prepacked_args(*problem(2, 256, 96, bits, 64, mx.bfloat16))
    monkeypatch.setenv("TINY_LLM_PREFETCH", ahead)
    actual = evaluated(*args)
    monkeypatch.setenv("TINY_LLM_MATMUL", "prepacked")
    assert_close(actual, evaluated(*args), "matmul with prefetching", ulps=0)


def test_task_3_invalid_distance_is_rejected(prefetched, monkeypatch):
    args = prepacked_args(*problem(1, 128, 32, 4, 64, mx.bfloat16))
    for wrong in ("far", "-64", "64 bytes"):
        monkeypatch.setenv("TINY_LLM_PREFETCH", wrong)
        with pytest.raises(ValueError, match=f'PREFETCH must be from 0 .*, got "{wrong}"'):
            evaluated(*args)


def test_task_3_prefetch_distances():
    # 31 GB/s at a latency of 100 ns requires 3,100 bytes in flight, about 50 cache lines.
    assert bytes_in_flight(100e-9, 31e9) == pytest.approx(3100)
    assert bytes_in_flight(200e-9, 31e9) == pytest.approx(6200), "expected twice the bytes"
    measured = {256: Timings(9.0, 8.0), 1024: Timings(9.0, 5.05), 4096: Timings(6.0, 5.0)}
    distance = best_prefetch_distance(measured)
    assert_equal(distance, 1024, "a 1% difference of minima to count as noise")
    assert best_prefetch_distance(measured, tolerance=0) == 4096
    assert best_prefetch_distance({**measured, 512: Timings(6.0, 6.0)}) == 1024
    assert best_prefetch_distance({4096: Timings(1.0, 1.0), 64: Timings(1.0, 1.0)}) == 64
