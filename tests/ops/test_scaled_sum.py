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
