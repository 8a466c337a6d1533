"""`argmax` compared with NumPy: first index on ties, awkward sizes."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, random
from tiny_llm import kernels


def argmax(x) -> np.ndarray:
    result = kernels.argmax(x)
    mx.eval(result)
    assert result.dtype == mx.uint32
    return np.array(result)


@pytest.mark.parametrize(
    "shape", [(1,), (7,), (3, 1), (2, 33), (1, 16384), (2, 3, 16385), (5, 40007)]
)
def test_equals_numpy(instruction_set, dtype, shape):
    x = random(*shape, dtype=dtype)
    np.testing.assert_array_equal(argmax(x), as_numpy(x).argmax(-1))


@pytest.mark.parametrize(
    "places", [(0, 5), (4, 7), (31, 32), (16383, 16384), (17, 39999), (2, 20000)]
)
def test_ties_pick_the_first_index(instruction_set, dtype, places):
    x = mx.zeros((1, 40000), dtype)
    for place in places:
        x[0, place] = 3.0
    assert argmax(x).tolist() == [min(places)]


def test_single_value_rows(instruction_set, dtype):
    values = mx.array([0.0, -1.5, -mx.inf, mx.inf])[:, None]
    assert argmax(mx.broadcast_to(values, (4, 20001)).astype(dtype)).tolist() == [0, 0, 0, 0]


def test_nan_is_never_selected(instruction_set, dtype):
    x = -mx.abs(random(3, 50, dtype=dtype)) - 1
    x[:, [0, 9, 49]] = mx.nan
    x[1, 30] = -0.5
    x[2] = mx.nan
    assert argmax(x).tolist() == [*np.nanargmax(as_numpy(x)[:2], axis=-1).tolist(), 0]
