"""`multi_quantized_matmul`: bitwise equal to one matmul per matrix."""

import mlx.core as mx
import pytest

from tests.support import random
from tiny_llm import QuantizedWeights, kernels
from tiny_llm.quantize import project, project_each

HALVES = [mx.bfloat16, mx.float16]


def matrices(I, outputs, bits, group_size, dtype):
    """Lists of scales, biases and packed weights, one entry per matrix."""
    quantized = [mx.quantize(random(O, I, dtype=dtype), group_size, bits) for O in outputs]
    b, scales, biases = (list(parts) for parts in zip(*quantized, strict=True))
    return scales, biases, b


@pytest.mark.parametrize("M", [0, 1, 2, 3, 17])
@pytest.mark.parametrize("outputs", [(64,), (130, 64, 33), (1, 200), (0, 7)], ids=str)
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_bitwise_equal_to_one_matmul_per_matrix(instruction_set, half, bits, outputs, M):
    scales, biases, b = matrices(256, outputs, bits, 64, half)
    a = random(2, M, 256, dtype=half)
    together = kernels.multi_quantized_matmul(scales, biases, 64, bits, a, b)
    mx.eval(together)
    assert len(together) == len(outputs)
    for n, product in enumerate(together):
        alone = kernels.quantized_matmul(scales[n], biases[n], 64, bits, a, b[n])
        assert product.shape == alone.shape == (2, M, outputs[n])
        assert mx.array_equal(product, alone), (
            f"the product with matrix {n} differs from that of a separate matmul"
        )


def test_mixed_layer_types():
    x = random(3, 128, dtype=mx.bfloat16)

    def quantized(O, bits):
        b, scales, biases = mx.quantize(random(O, 128, dtype=mx.bfloat16), 64, bits)
        return QuantizedWeights(scales, biases, 64, bits, b)

    plain = random(5, 128, dtype=mx.bfloat16)
    for weights in ([quantized(7, 4), quantized(9, 4)], [quantized(7, 4), quantized(9, 8)]):
        for mixed in (weights, [*weights, plain], [plain, plain]):
            for product, w in zip(project_each(x, mixed), mixed, strict=True):
                assert mx.array_equal(product, project(x, w))
