"""quantized_embedding's Metal kernel: bitwise equal to mx.dequantize."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import DTYPES, random
from tiny_llm import kernels

from .support import DTYPE_NAMES, ORDERS, as_bound, empty, run

SOURCE = "quantized_embedding/quantized_embedding.metal"
IDS = [0, 3, -1, 46, -47, 47, -48, 3]  # ids of a 47-row table; −48 and 47 are out of range


def look_up(ids, scales, biases, weight, bits, group_size, signed, **how):
    dtype, E = DTYPE_NAMES[scales.dtype], weight.shape[1] * 32 // bits
    V, N = weight.shape[0], len(ids)
    launch = kernels.extension().metal.quantized_embedding_launch(
        N, V, E, group_size, bits, signed, dtype
    )
    out = empty((N, E), dtype)
    out[:] = 7  # not NaN, because NaN is the correct result for out-of-range ids
    table = [as_bound(x) for x in (scales, biases, weight)]
    run(SOURCE, launch, [ids, *table, out], **how)
    return out


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
# With 2176, a row has more packed 32-bit integers (272, 544) than a threadgroup has threads (256).
@pytest.mark.parametrize("E", [128, 2176])
def test_rows_equal_the_table(dtype, bits, group_size, E):
    weight, scales, biases = mx.quantize(random(47, E, dtype=dtype), group_size, bits)
    plain = as_bound(mx.dequantize(weight, scales, biases, group_size, bits))
    expected = np.stack([plain[i] if -47 <= i < 47 else plain[0] * np.nan for i in IDS])
    arguments = (scales, biases, weight, bits, group_size)
    for order in ORDERS:
        actual = look_up(np.array(IDS, np.int32), *arguments, True, order=order)
        np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))
    unsigned = look_up(np.array(IDS, np.int32).view(np.uint32), *arguments, False)
    expected[[2, 4]] = np.nan  # −1 and −47 are out of range when read as uint32
    np.testing.assert_array_equal(unsigned.astype(np.float32), expected.astype(np.float32))
