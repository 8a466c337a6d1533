"""NaN check: detects NaN and infinity, accepts the largest finite values."""

import math
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import mlx.nn as nn
import pytest

from tiny_llm.models.checkpoint.nan_check import FiniteCheck

LARGEST = {
    mx.float32: 3.4028234663852886e38,
    mx.bfloat16: 3.3895313892515355e38,
    mx.float16: 65504.0,
}


def check(module):
    checking = FiniteCheck()
    checking.add("part", module)
    checking.finish()


def norm_with(numbers, dtype):
    module = nn.RMSNorm(len(numbers))
    module.weight = mx.array(numbers, dtype=mx.float32).astype(dtype)
    return module


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_largest_finite_numbers_are_accepted(dtype):
    check(norm_with([LARGEST[dtype], -LARGEST[dtype], 0.0, -0.0, 1e-30, -1e-45, 1.0], dtype))


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("number", [math.nan, -math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_reported(dtype, number):
    with pytest.raises(ValueError, match=r"^part\.weight has NaN or infinite values"):
        check(norm_with([1.0, -2.0, number, 3.0], dtype))


# (encoding of NaN, encodings of the largest finite values) of each 8-bit floating-point format.
BYTES = {
    ("mxfp4", "scales"): (0xFF, [0xFE, 0x7F]),
    ("mxfp8", "scales"): (0xFF, [0xFE, 0x7F]),
    ("mxfp8", "weight"): (0x7F, [0x7E, 0xFE]),
    ("nvfp4", "scales"): (0x7F, [0x7E, 0xFE]),
}


@pytest.mark.parametrize(("mode", "name"), BYTES)
def test_float8(mode, name):
    layer = nn.QuantizedLinear(128, 8, bias=False, group_size=None, bits=None, mode=mode)
    nan, finite = BYTES[mode, name]
    shape, dtype = layer[name].view(mx.uint8).shape, layer[name].dtype

    def fill(byte):
        numbers = mx.full(shape, finite[0], dtype=mx.uint8)
        numbers[-1, -1], numbers[0, 0] = byte, finite[1]
        layer[name] = numbers.view(dtype)

    fill(finite[0])
    check(layer)
    for byte in {nan, nan | 0x80}:
        fill(byte)
        with pytest.raises(ValueError, match=f"^part.{name} has NaN or infinite values"):
            check(layer)


def test_check_runs_on_any_thread():
    """MLX streams are bound to a thread, so a check must use its own thread's."""
    check(norm_with([1.0], mx.float32))
    with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="infinite"):
        pool.submit(lambda: check(norm_with([math.inf], mx.float32))).result()
