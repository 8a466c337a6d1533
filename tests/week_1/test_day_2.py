"""Week 1, day 2: rotary positional encoding."""

import mlx.core as mx
import pytest

from tests.support import EPSILON, assert_close, random
from tiny_llm import RoPE

SHAPES = [(1, 1, 1, 2), (1, 10, 8, 4), (2, 7, 3, 128), (3, 33, 2, 64)]


def oracle(x: mx.array, offset: int, traditional: bool, base: float) -> mx.array:
    """MLX's RoPE of x, which is B×L×H×D; `mx.fast.rope` expects B×H×L×D."""
    rotated = mx.fast.rope(
        x.swapaxes(1, 2), x.shape[-1], traditional=traditional, base=base, scale=1.0, offset=offset
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


@pytest.mark.parametrize(
    ("dims", "positions", "message"),
    [
        (8, slice(8, 11), "must be from 0 to 9"),
        (8, slice(2, 4), "3 consecutive positions"),
        (7, None, "must be even"),
    ],
)
def test_task_2_invalid_arguments(dims, positions, message):
    with pytest.raises(ValueError, match=message):
        RoPE(dims, seq_len=10)(mx.zeros((1, 3, 1, 8)), positions)
