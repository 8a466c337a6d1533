"""Elementwise Metal kernels on the emulator, compared with the CPU."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from tests.support import DTYPES, random
from tiny_llm import kernels

from .support import DTYPE_NAMES, EXTENSION, ORDERS, as_bound, assert_equals_cpu, run

MODES = ["plain", "asan", "race"]


def launches():
    return kernels.extension().metal


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("size", [1, 255, 256, 1000])
def test_axpby(mode, dtype, size):
    x, y = random(size, dtype=dtype), random(size, dtype=dtype)

    def call(stream):
        return (kernels.axpby(x, y, 4.0, -0.3, stream=stream),)

    for max_threads in (1024, 64):
        assert_equals_cpu(mode, call, ulps=1, max_threads=max_threads)


def test_axpby_rejects_too_many_elements():
    most = 2**31 - 1025
    assert launches().axpby_launch(most, 4.0, -0.3, "float32").groups[0] == 2**23 - 4
    with pytest.raises(ValueError, match=f"at most {most} elements on the GPU, got {most + 1}"):
        launches().axpby_launch(most + 1, 4.0, -0.3, "float32")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize(
    ("B", "L", "H", "D", "W", "shared", "normalizes"),
    [
        (1, 1, 1, 2, 1, True, True),
        (2, 3, 5, 80, 40, False, True),
        (1, 4, 3, 128, 64, True, True),
        (2, 1, 2, 270, 135, False, True),
        (2, 3, 5, 80, 40, False, False),
        (1, 1, 2, 270, 135, True, False),
        (2, 3, 2, 80, 10, False, True),
        (1, 2, 1, 270, 3, True, False),
    ],
)
def test_qk_norm_rope(mode, dtype, B, L, H, D, W, shared, normalizes):
    """x is a slice of a longer projection row: H of its H + 2 heads."""
    x = random(B, L, H + 2, D, dtype=dtype)[:, :, 1:-1]
    angles = random(1 if shared else B, L, W, scale=10)
    cos, sin = mx.cos(angles), mx.sin(angles)
    for weight in (random(D), random(D, dtype=dtype)) if normalizes else (None,):
        arguments = x, weight, 1e-6, cos, sin
        assert_equals_cpu(
            mode, lambda s, args=arguments: (kernels.qk_norm_rope(*args, stream=s),), ulps=4
        )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [mx.uint8, mx.bfloat16, mx.float32, mx.complex64], ids=str)
def test_cache_write(mode, dtype):
    """Writes tokens in projection layout, B×L×H×D."""
    B, H, C, L, D = 5, 2, 9, 4, 33
    tokens = (random(B, L, H, D) * 20).astype(dtype)
    buffer = (random(B, H, C, D) * 20).astype(dtype)
    offsets = mx.array([0, -1, 5, 6, -9], dtype=mx.int32)  # the last two offsets are out of range
    expected = kernels.cache_write(buffer, tokens.swapaxes(1, 2), offsets, stream=mx.cpu)
    unsigned = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[dtype.size]
    out = as_bound(buffer).view(unsigned).copy()
    launch = launches().cache_write_launch(B, H, C, L, D, [L * H * D, D, H * D, 1], dtype.size)
    arrays = [as_bound(tokens).view(unsigned), as_bound(offsets), out]
    run("cache_write/cache_write.metal", launch, arrays, mode)
    np.testing.assert_array_equal(out, as_bound(expected).view(unsigned))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_quantized_embedding(mode, dtype, bits, group_size):
    """Covers rows of more packed integers (272, 544) than a threadgroup has threads (256)."""
    ids = mx.array([0, 3, -1, 46, -47, 47, -48, 3])  # −48 and 47 are out of range
    for E, given in itertools.product((128, 2176), (ids, ids.view(mx.uint32))):
        weight, scales, biases = mx.quantize(random(47, E, dtype=dtype), group_size, bits)

        def call(stream, args=(given, scales, biases, group_size, bits, weight)):
            return (kernels.quantized_embedding(*args, stream=stream),)

        for order in ORDERS if mode == "plain" else ORDERS[:1]:
            assert_equals_cpu(mode, call, ulps=0, order=order)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("item_size", [1, 2, 4, 8])
def test_copies_with_any_strides(mode, item_size):
    memory = np.arange(2 * 3 * 5 * 7 * 2).astype(f"u{item_size}").reshape(2, 3, 5, 14)
    for view in (memory, memory.T, memory[:, :, ::2, :7], memory[0, 1], memory[:, :1, :1, 3:]):
        strides = [step // item_size for step in view.strides]
        launch = launches().copy_launch(view.shape, strides, item_size)
        start = view.__array_interface__["data"][0] - memory.__array_interface__["data"][0]
        source = memory.reshape(-1)[start // item_size :]
        out = np.zeros(view.shape, memory.dtype)
        run(EXTENSION / "common" / "metal_copy.metal", launch, [source, out], mode)
        np.testing.assert_array_equal(out, view)
