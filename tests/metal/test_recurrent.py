"""Gated DeltaNets on the emulated GPU, compared with the CPU."""

import mlx.core as mx
import pytest

from tests.metal.support import assert_equals_cpu, on_gpu
from tests.ops.recurrent_problems import (
    CONV,
    DELTA,
    Batch,
    assert_chunks_are_bitwise_equal,
    conv_problem,
    delta_problem,
    ragged_batch,
)
from tests.support import DTYPES, assert_same_bits
from tiny_llm import kernels
from tools.metal_emulator import emulated_gpu

pytestmark = pytest.mark.skipif(
    on_gpu() or not kernels.computes_on_cpu(), reason="needs a machine without a GPU"
)

MODES = pytest.mark.parametrize("mode", ["plain", "asan", "race", "loose"])
BATCH = ragged_batch([5, 1, 12])
# Key heads, value heads, key head size, value head size.
SHAPES = [(1, 1, 1, 1), (2, 4, 6, 10), (2, 2, 33, 70), (1, 1, 256, 9)]


@MODES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("by_tap", [False, True], ids=["C×K", "K×C"])
@pytest.mark.parametrize("shape", [(4, 1), (2, 7), (8, 40), (4, 300)], ids=str)
def test_causal_conv1d(mode, dtype, shape, by_tap):
    arrays = conv_problem(*shape, BATCH, dtype, by_tap)
    if by_tap:
        arrays["weight"] = arrays["weight"].astype(mx.float32)
    assert_equals_cpu(mode, lambda s: kernels.causal_conv1d(**arrays, stream=s), ulps=32)


@MODES
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_delta_rule(mode, dtype, shape):
    arrays = delta_problem(*shape, BATCH, dtype)
    assert_equals_cpu(
        mode, lambda s: kernels.gated_delta_rule(**arrays, num_k_heads=shape[0], stream=s), ulps=64
    )


@MODES
def test_views_and_no_elements(mode):
    arrays = delta_problem(1, 2, 8, 24, BATCH, mx.bfloat16)
    for name in ("qkv", "states"):
        arrays[name] = mx.contiguous(arrays[name].T).T
    for name in ("a", "A_log", "write_slots"):
        arrays[name] = mx.repeat(arrays[name], 2, axis=-1)[..., ::2]
    assert_equals_cpu(
        mode, lambda s: kernels.gated_delta_rule(**arrays, num_k_heads=1, stream=s), ulps=64
    )
    with emulated_gpu(kernels.extension(), mode=mode) as gpu:
        none = delta_problem(1, 2, 8, 24, Batch((), (), ()), mx.bfloat16)
        o, states = kernels.gated_delta_rule(**none, num_k_heads=1, stream=gpu.stream())
        assert o.shape == (0, 2, 24)
        assert_same_bits(states, none["states"], "states")


@pytest.mark.parametrize("op", [CONV, DELTA], ids=["conv", "delta"])
@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_bitwise_equal_in_batches_and_chunks(op, chunk):
    with emulated_gpu(kernels.extension()) as gpu:
        assert_chunks_are_bitwise_equal(op, chunk, mx.float32, overwrite=True, stream=gpu.stream())
