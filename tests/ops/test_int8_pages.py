"""8-bit KV pages: quantization of their rows."""

import mlx.core as mx
import numpy as np
import pytest

from tests.paging import write_int8
from tests.support import as_numpy, random
from tiny_llm.kv_storage.int8_rows import dequantize_rows, quantize_rows


def assert_same_rows(actual: mx.array, expected: mx.array) -> None:
    np.testing.assert_array_equal(np.array(actual), np.array(expected))


@pytest.mark.parametrize("D", [1, 7, 16, 80, 128, 256, 511])
def test_written_rows_are_bitwise_equal_to_reference(instruction_set, dtype, D):
    tokens = random(37, 3, D, dtype=dtype)
    tokens[5] = 0
    tokens[6] = tokens[6] * 1e-38
    assert_same_rows(write_int8(tokens, 37)[0].swapaxes(0, 1), quantize_rows(tokens))
    rows = write_int8(tokens, 37, padding=3, fill=99)
    assert_same_rows(rows[0, ..., :-3].swapaxes(0, 1), quantize_rows(tokens))
    assert (rows[..., -3:] == 99).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_row_with_a_non_finite_element_is_nan(instruction_set, dtype, bad):
    tokens = random(2, 1, 20, dtype=dtype)
    tokens[0, 0, 17] = bad
    rows = write_int8(tokens, 2)
    assert_same_rows(rows[0].swapaxes(0, 1), quantize_rows(tokens))
    assert np.isnan(as_numpy(dequantize_rows(rows)[0, 0, 0])).all()
    assert np.isfinite(as_numpy(dequantize_rows(rows)[0, 0, 1])).all()


def test_strided_tokens(instruction_set):
    tokens = random(20, 2, 12)
    for view in (mx.contiguous(tokens.T).T, mx.repeat(tokens, 2, axis=-1)[..., ::2]):
        assert_same_rows(write_int8(view, 4), write_int8(view + 0, 4))
