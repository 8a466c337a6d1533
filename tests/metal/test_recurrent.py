"""Gated DeltaNets on the emulated GPU, compared with the CPU."""

from collections.abc import Iterator

import mlx.core as mx
import pytest

from tests.metal.support import NO_CLANG, assert_equals_cpu, on_gpu
from tests.ops.recurrent_problems import Batch, conv_problem, delta_problem, ragged_batch
from tests.support import DTYPES, assert_same_bits, random
from tiny_llm import kernels
from tools.metal_emulator import Device, emulated_gpu, has_clang

pytestmark = pytest.mark.skipif(
    on_gpu() or not kernels.computes_on_cpu(), reason="needs a machine without a GPU"
)

BATCH = ragged_batch([5, 1, 12])
# Key heads, value heads, key head size, value head size.
SHAPES = [(1, 1, 1, 1), (2, 4, 6, 10), (2, 2, 33, 70), (1, 1, 256, 9)]


@pytest.fixture(params=["plain", "asan", "race", "loose"])
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    if not has_clang():
        pytest.skip(NO_CLANG)
    return request.param


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("by_tap", [False, True], ids=["C×K", "K×C"])
@pytest.mark.parametrize("shape", [(4, 1), (2, 7), (8, 40), (4, 300)], ids=str)
def test_causal_conv1d(mode, dtype, shape, by_tap):
    arrays = conv_problem(*shape, BATCH, dtype, by_tap)
    if by_tap:
        arrays["weight"] = arrays["weight"].astype(mx.float32)
    assert_equals_cpu(mode, lambda s: kernels.causal_conv1d(**arrays, stream=s), ulps=32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gated_delta_rule(mode, dtype, shape):
    arrays = delta_problem(*shape, BATCH, dtype)
    assert_equals_cpu(
        mode, lambda s: kernels.gated_delta_rule(**arrays, num_k_heads=shape[0], stream=s), ulps=64
    )


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


@pytest.fixture(scope="module")
def gpu() -> Iterator[Device]:
    if not has_clang():
        pytest.skip(NO_CLANG)
    with emulated_gpu(kernels.extension()) as device:
        yield device


@pytest.mark.parametrize("chunk", [1, 3, 7])
def test_bitwise_equal_in_batches_and_chunks(gpu, chunk):
    stream = gpu.stream()
    whole = delta_problem(1, 2, 24, 40, Batch((7,), (2,), (2,) * 7), mx.float32)
    weight, conv_states = random(128, 4), random(9, 3, 128)
    slots = {name: whole[name] for name in ("cu_seqlens", "read_slots", "write_slots")}
    y, conv_expected = kernels.causal_conv1d(
        whole["qkv"], weight, conv_states, **slots, stream=stream
    )
    o, expected = kernels.gated_delta_rule(**whole, num_k_heads=1, stream=stream)
    mx.eval(y, o)
    conv_new, new = conv_states + 0, whole["states"] + 0
    for t in range(0, 7, chunk):
        n = min(chunk, 7 - t)
        step = Batch((3, n), (5, 2), (-1, 5, -1) + (-1,) * (n - 1) + (2,))
        arrays = whole | delta_problem(1, 2, 24, 40, step, mx.float32) | {"states": new}
        arrays |= {name: whole[name] for name in ("A_log", "dt_bias")}
        for name in ("qkv", "a", "b"):
            arrays[name] = mx.concatenate([arrays[name][:3], whole[name][t : t + n]])
        del new  # `arrays` has the only reference, so states are updated in place
        y_part, conv_new = kernels.causal_conv1d(
            arrays["qkv"], weight, conv_new, **step.arrays, overwrite=True, stream=stream
        )
        o_part, new = kernels.gated_delta_rule(
            **arrays, num_k_heads=1, overwrite=True, stream=stream
        )
        del arrays
        mx.eval(y_part, o_part, conv_new, new)
        assert_same_bits(y_part[3:], y[t : t + n], "y")
        assert_same_bits(o_part[3:], o[t : t + n], "o")
    assert_same_bits(conv_new[2], conv_expected[2], "convolution's state")
    assert_same_bits(new[2], expected[2], "state")
