"""`qk_norm_rope` compared with `rms_norm` and `RoPE`."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, assert_close, random
from tiny_llm import kernels
from tiny_llm.positional_encoding import RoPE

EPS = 1e-6
SHAPES = [  # batch size, tokens, heads, head size
    (1, 1, 1, 2),
    (1, 1, 16, 128),
    (3, 1, 8, 128),
    (2, 5, 3, 16),
    (1, 7, 2, 66),
    (2, 3, 5, 34),
    (1, 200, 3, 64),
]
WHOLE = [(shape, shape[-1] // 2) for shape in SHAPES]
PARTS = [((2, 5, 3, D), W) for W, D in ((1, 4), (3, 16), (8, 66), (32, 256), (256, 512))]


def qk_norm_rope(x, weight, cos, sin) -> mx.array:
    result = kernels.qk_norm_rope(x, weight, EPS, cos, sin)
    mx.eval(result)
    return result


def problem(B, L, H, D, dtype):
    weight = (1 + 0.3 * random(D)).astype(dtype)
    rope = RoPE(D, 4096, base=1_000_000)
    offsets = [slice(start, start + L) for start in (0, 1000, 37)[:B]]
    return random(B, L, H, D, dtype=dtype), weight, rope, offsets


@pytest.mark.parametrize("weight", ["own dtype", "float32", None])
@pytest.mark.parametrize(("shape", "W"), WHOLE + PARTS)
def test_bitwise_equal_to_rms_norm_and_rope(instruction_set, dtype, shape, W, weight):
    """The first 2·W dimensions equal a head of this size; others are unrotated."""
    x, own, _, offsets = problem(*shape, dtype)
    given = {"own dtype": own, "float32": random(shape[-1]), None: None}[weight]
    rope = RoPE(2 * W, 4096, base=1_000_000)
    cos, sin = rope.cos_sin(offsets, *shape[:2])
    normed = x if given is None else kernels.rms_norm(x, given, EPS)
    rotated = rope(normed[..., : 2 * W], offsets)
    expected = mx.concatenate([rotated, normed[..., 2 * W :]], axis=-1).swapaxes(1, 2)
    actual = qk_norm_rope(x, given, cos, sin)
    assert_close(actual, expected, f"rms_norm, then RoPE of {2 * W} dimensions", ulps=0)


def test_shared_cos_and_sin(instruction_set, dtype):
    x, weight, rope, _ = problem(2, 5, 3, 16, dtype)
    cos, sin = rope.cos_sin(slice(7, 12), 2, 5)
    assert cos.shape == (1, 5, 8)
    expected = qk_norm_rope(x, weight, *rope.cos_sin([slice(7, 12)] * 2, 2, 5))
    assert_close(qk_norm_rope(x, weight, cos, sin), expected, "shared cos and sin", ulps=0)


@pytest.mark.parametrize("value", [mx.nan, mx.inf, -mx.inf])
def test_nan_and_infinity_stay_in_their_head(instruction_set, dtype, value):
    x, weight, rope, offsets = problem(2, 3, 4, 16, dtype)
    angles = rope.cos_sin(offsets, 2, 3)
    clean = as_numpy(qk_norm_rope(x, weight, *angles))
    x[1, 2, 3, 5] = value
    dirty = as_numpy(qk_norm_rope(x, weight, *angles))
    assert np.isnan(dirty[1, 3, 2]).any()
    dirty[1, 3, 2] = clean[1, 3, 2]
    np.testing.assert_array_equal(dirty, clean)
