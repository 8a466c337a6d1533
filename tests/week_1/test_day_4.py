"""Week 1, day 4: RMSNorm, SiLU and the MLP."""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.support import EPSILON, as_numpy, assert_close, random
from tiny_llm import Qwen3MLP, RMSNorm, silu


@pytest.mark.parametrize("shape", [(1, 8), (5, 33), (2, 3, 128), (2, 3, 4, 67)])
@pytest.mark.parametrize("eps", [1e-5, 1e-6])
def test_task_1_rms_norm(device, dtype, shape, eps):
    x = random(*shape, dtype=dtype, scale=3)
    weight = random(shape[-1], dtype=dtype)
    actual = RMSNorm(shape[-1], weight, eps=eps)(x)
    assert actual.dtype == dtype
    assert_close(actual, mx.fast.rms_norm(x, weight, eps), "RMSNorm", ulps=2)


def test_task_1_is_computed_in_float32(device):
    # 300² = 90,000 exceeds float16's largest value, 65,504.
    x = mx.full((1, 16), 300.0, dtype=mx.float16)
    actual = as_numpy(RMSNorm(16, mx.ones(16, dtype=mx.float16))(x))
    assert actual == pytest.approx(1, abs=2e-3), (
        "expected 1 for equal elements: cast to float32 before squaring"
    )
    x = random(3, 64, dtype=mx.bfloat16)
    weight = random(64, dtype=mx.float32)
    x32 = x.astype(mx.float32)
    unit = (x32 * mx.rsqrt(mx.mean(x32 * x32, axis=-1, keepdims=True) + 1e-5)).astype(mx.bfloat16)
    assert_close(RMSNorm(64, weight)(x), unit * weight, "cast back to bfloat16, then × weight", 0)


def test_task_1_zero_input_stays_zero(device, dtype):
    assert not as_numpy(RMSNorm(8, mx.ones(8, dtype))(mx.zeros((2, 8), dtype))).any()


def test_task_1_weight_of_the_wrong_shape():
    with pytest.raises(ValueError, match="must have shape \\(8,\\)"):
        RMSNorm(8, mx.ones(9))


def test_task_2_silu(device, dtype):
    x = random(3, 257, dtype=dtype, scale=4)
    assert_close(silu(x), nn.silu(x), "silu", ulps=2)
    actual = silu(mx.array(-11.5, mx.float16)).item()  # exp(11.5) is beyond float16
    assert actual == pytest.approx(-1.165e-4, rel=0.02), (
        "expected no exponential of a positive number: 1 / (1 + exp(-x)) is 0"
    )
    x = mx.array([-60000.0, -200.0, -20.0, 0.0, 20.0, 200.0, 60000.0], dtype=dtype)
    actual = as_numpy(silu(x))
    assert actual[:3] == pytest.approx(0, abs=1e-5), (
        "expected 0 for very negative x, where exp(-x) overflows"
    )
    assert actual[3:].tolist() == as_numpy(x)[3:].tolist()


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_task_2_silu_of_negative_numbers_does_not_cancel(device, half):
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


@pytest.mark.parametrize("shape", [(1, 1, 48), (2, 7, 48), (48,)])
def test_task_2_mlp(device, dtype, shape):
    from mlx_lm.models import qwen3

    oracle = qwen3.MLP(48, 80)
    oracle.set_dtype(dtype)
    x = random(*shape, dtype=dtype)
    mlp = Qwen3MLP(48, 80, oracle.gate_proj.weight, oracle.up_proj.weight, oracle.down_proj.weight)
    assert_close(mlp(x), oracle(x), "MLP: w_down(silu(w_gate x) * (w_up x))", ulps=4)
