"""Week 1, day 2: rotary positional encoding, RMSNorm, SiLU and the MLP."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.support import EPSILON, as_numpy, assert_close, random
from tiny_llm import Qwen3MLP, RMSNorm, RoPE, silu

SHAPES = [(1, 1, 1, 2), (1, 10, 8, 4), (2, 7, 3, 128), (3, 33, 2, 64)]


def oracle(x: mx.array, offset: int, traditional: bool, base: float) -> mx.array:
    """MLX's RoPE of x, which is B×L×H×D; `mx.fast.rope` expects B×H×L×D."""
    rotated = mx.fast.rope(
        x.swapaxes(1, 2),
        x.shape[-1],
        traditional=traditional,
        base=base,
        scale=1.0,
        offset=offset,
    )
    return rotated.swapaxes(1, 2)


def check(shape, dtype, traditional, offset, base):
    x = random(*shape, dtype=dtype)
    L = shape[1]
    rope = RoPE(shape[-1], 40_000, base=base, traditional=traditional)
    actual = rope(x, None if offset is None else slice(offset, offset + L))
    expected = oracle(x, offset or 0, traditional, base)
    assert actual.dtype == dtype, f"expected RoPE to return x's dtype, {dtype}"
    pairs = "(x[0], x[1]), (x[2], x[3]), …" if traditional else "(x[i], x[i + D/2])"
    # exp(−i·log base/(D/2)) and base ** (−2i/D) differ in the last bits; multiplying by a position
    # scales the difference.
    angle_error = ((offset or 0) + L) * EPSILON[mx.float32]
    ulps = 2 + angle_error / EPSILON[dtype]
    assert_close(actual, expected, f"RoPE at offset {offset}, pairs {pairs}", ulps=ulps)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [None, 0, 5, 1000])
@pytest.mark.parametrize("base", [10_000, 1_000_000.0])
def test_task_1_traditional(device, dtype, shape, offset, base):
    check(shape, dtype, True, offset, base)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("offset", [None, 0, 5, 1000])
@pytest.mark.parametrize("base", [10_000, 1_000_000.0])
def test_task_2_non_traditional(device, dtype, shape, offset, base):
    check(shape, dtype, False, offset, base)


def test_task_2_far_positions(device):
    # float16 and bfloat16 would round these positions to multiples of 16 and 128.
    check((1, 16, 2, 128), mx.float32, False, 32_000, 1_000_000)


def test_task_2_scores_depend_on_distance_only(device):
    rope = RoPE(64, 1000)
    query, key = random(1, 1, 1, 64), random(1, 1, 1, 64)

    def score(query_at: int, key_at: int) -> float:
        q = rope(query, slice(query_at, query_at + 1))
        k = rope(key, slice(key_at, key_at + 1))
        return mx.sum(q * k).item()

    assert score(17, 5) == pytest.approx(score(512, 500), abs=1e-3)


def test_task_2_position_beyond_the_table():
    rope = RoPE(8, seq_len=10)
    with pytest.raises(ValueError, match="must be from 0 to 9"):
        rope(mx.zeros((1, 4, 1, 8)), slice(7, 11))


def test_task_2_slice_of_wrong_length():
    rope = RoPE(8, seq_len=10)
    with pytest.raises(ValueError, match="3 consecutive positions"):
        rope(mx.zeros((1, 3, 1, 8)), slice(2, 4))


def test_task_2_odd_head_size():
    with pytest.raises(ValueError, match="must be even"):
        RoPE(7, 10)


@pytest.mark.parametrize("shape", [(1, 8), (5, 33), (2, 3, 128), (2, 3, 4, 67)])
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_task_3_rms_norm(device, dtype, shape, eps):
    x = random(*shape, dtype=dtype, scale=3)
    weight = random(shape[-1], dtype=dtype)
    actual = RMSNorm(shape[-1], weight, eps=eps)(x)
    assert actual.dtype == dtype
    assert_close(actual, mx.fast.rms_norm(x, weight, eps), "RMSNorm", ulps=2)


def test_task_3_squares_are_accumulated_in_float32(device):
    # 300² = 90,000 exceeds float16's largest value, 65,504.
    x = mx.full((1, 16), 300.0, dtype=mx.float16)
    actual = as_numpy(RMSNorm(16, mx.ones(16, dtype=mx.float16))(x))
    assert actual == pytest.approx(1, abs=2e-3), (
        "expected 1 for equal elements: cast to float32 before squaring"
    )


def test_task_3_result_is_cast_before_multiplying_the_weight(device):
    x = random(3, 64, dtype=mx.bfloat16)
    weight = random(64, dtype=mx.float32)
    x32 = x.astype(mx.float32)
    unit = (x32 * mx.rsqrt(mx.mean(x32 * x32, axis=-1, keepdims=True) + 1e-5)).astype(mx.bfloat16)
    assert_close(RMSNorm(64, weight)(x), unit * weight, "cast back to bfloat16, then × weight", 0)


def test_task_3_zero_input_stays_zero(device, dtype):
    assert not as_numpy(RMSNorm(8, mx.ones(8, dtype))(mx.zeros((2, 8), dtype))).any()


def test_task_3_weight_of_the_wrong_shape():
    with pytest.raises(ValueError, match="must have shape \\(8,\\)"):
        RMSNorm(8, mx.ones(9))


def test_task_4_silu(device, dtype):
    x = random(3, 257, dtype=dtype, scale=4)
    assert_close(silu(x), nn.silu(x), "silu", ulps=2)


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_task_4_silu_of_negative_numbers_does_not_cancel(device, half):
    x = mx.arange(-9, 9, 0.01).astype(half)  # not below −9.7, where exp(x) is subnormal
    x64 = as_numpy(x).astype(np.float64)
    expected = x64 / (1 + np.exp(-x64))
    actual = as_numpy(silu(x))
    ulps = np.abs(actual - expected) / np.maximum(np.abs(expected), 1e-30) / EPSILON[half]
    worst = ulps.argmax()
    assert ulps[worst] <= 2, (
        f"silu({x64[worst]}): expected {expected[worst]:.4g}, got {actual[worst]:.4g}; "
        "1 - sigmoid(|x|) cancels for negative x, exp(-|x|) / (1 + exp(-|x|)) does not"
    )


def test_task_4_silu_is_stable_far_from_zero(device, dtype):
    x = mx.array([-60000.0, -200.0, -20.0, 0.0, 20.0, 200.0, 60000.0], dtype=dtype)
    actual = as_numpy(silu(x))
    assert actual[:3] == pytest.approx(0, abs=1e-5), (
        "expected 0 for very negative x, where exp(-x) overflows"
    )
    assert actual[3:].tolist() == as_numpy(x)[3:].tolist()


@pytest.mark.parametrize("shape", [(1, 1, 48), (2, 7, 48), (48,)])
def test_task_4_mlp(device, dtype, shape):
    from mlx_lm.models import qwen3

    oracle = qwen3.MLP(48, 80)
    oracle.set_dtype(dtype)
    x = random(*shape, dtype=dtype)
    mlp = Qwen3MLP(48, 80, oracle.gate_proj.weight, oracle.up_proj.weight, oracle.down_proj.weight)
    assert_close(mlp(x), oracle(x), "MLP: w_down(silu(w_gate x) * (w_up x))", ulps=4)
