"""Messages of failed comparisons: index, values, number of wrong elements."""

import re

import mlx.core as mx
import pytest

from tests.support import assert_close, assert_same_bits


@pytest.mark.parametrize(
    ("actual", "expected", "message"),
    [
        (
            [[1, 2], [3, 4.5]],
            [[1, 2], [3, 4]],
            "x: at index [1, 1] expected 4, got 4.5 (error 0.5, allowed 1.91e-06); 1 of 4 elements",
        ),
        ([1, 9, 3], [0, 1, 2], "x: at index [1] expected 1, got 9"),
        ([0, mx.nan], [0, 1], "x: at index [1] expected 1, got nan"),
        ([0, 1], [0, mx.nan], "x: at index [1] expected nan, got 1"),
        ([0, mx.inf], [0, -mx.inf], "x: at index [1] expected -inf, got inf"),
        ([0, 5], [0, mx.inf], "1 of 2 elements are wrong"),
        ([[0]], [0], "x: expected shape (1,), got (1, 1)"),
    ],
)
def test_different_numbers(actual, expected, message):
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_close(mx.array(actual, mx.float32), mx.array(expected, mx.float32), "x")


def test_close_numbers():
    numbers = mx.array([1.0, -mx.inf, mx.inf, mx.nan])
    assert_close(numbers, numbers + 0, "x", ulps=0)
    assert_close(mx.array([100.0, 1e-6]), mx.array([100.0, 0.0]), "relative to the largest")
    assert_close(mx.zeros((0, 3)), mx.zeros((0, 3)), "nothing")


def test_different_bits():
    numbers = mx.array([1.0, mx.nan, 3.0])
    assert_same_bits(numbers, numbers + 0, "x")
    message = "x: at index [2] expected 4, got 3 (must be bitwise equal); 1 of 3 elements"
    with pytest.raises(AssertionError, match=re.escape(message)):
        assert_same_bits(numbers, mx.array([1.0, mx.nan, 4.0]), "x")
    with pytest.raises(AssertionError, match="expected mlx.core.float16, got mlx.core.float32"):
        assert_same_bits(numbers, numbers.astype(mx.float16), "x")
