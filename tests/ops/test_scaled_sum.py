"""`scaled_sum` compared with MLX's sum and product."""

import mlx.core as mx
import pytest

from tests.support import assert_close, random
from tiny_llm import kernels


@pytest.mark.parametrize("scale", [1.0, 0.37, -2.5])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 33), (2, 5, 64), (300, 130), (0, 8)], ids=str)
def test_equals_sum_times_scale(instruction_set, dtype, shape, scale):
    x, y = random(*shape, dtype=dtype), random(*shape, dtype=dtype)
    expected = ((x + y).astype(mx.float32) * mx.array(scale)).astype(dtype)
    assert_close(kernels.scaled_sum(x, y, scale), expected, "(x + y) · scale", ulps=0)


def test_views(instruction_set, dtype):
    both = random(3, 4, 80, dtype=dtype)
    for x, y in ((both[..., :40], both[..., 40:]), (both[..., ::2], both[..., 1::2])):
        assert_close(kernels.scaled_sum(x, y, 2.0), (x + y) * 2, "views", ulps=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": mx.zeros((2, 8), mx.int32)}, "expected x in float32, float16 or bfloat16"),
        ({"y": mx.zeros((2, 8))}, "expected y in the dtype of x, float16, got float32"),
        ({"y": mx.zeros((8,), mx.float16)}, r"expected y of the shape of x, \(2,8\), got \(8\)"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_errors_name_the_argument(changes, message):
    arguments = {"x": mx.zeros((2, 8), mx.float16), "y": mx.zeros((2, 8), mx.float16)}
    with pytest.raises(ValueError, match=rf"\[scaled_sum\] .*{message}"):
        kernels.scaled_sum(**{**arguments, **changes}, scale=1.0)
