"""Matmuls with several matrices or experts, compared with single matmuls."""

import mlx.core as mx
import pytest

from tests.ops.operations import prepacked, quantized
from tests.ops.quantized_matmul_problems import HALVES
from tests.support import assert_same_bits, random
from tiny_llm import QuantizedWeights, kernels
from tiny_llm.kernels.prepack import prepack_weight
from tiny_llm.quantize import project, project_each


def stack(X, O, I, bits=4, group_size=64, dtype=mx.bfloat16):
    """(scales, biases, packed weights) of X experts."""
    b, scales, biases = mx.quantize(random(X, O, I, dtype=dtype), group_size, bits)
    return scales, biases, b


def one_by_one(scales, biases, group_size, bits, a, b, experts):
    """Reference: one matmul per row."""
    K = experts.shape[-1]
    own = a.ndim == experts.ndim + 1
    rows = a.reshape(-1, 1, a.shape[-1])
    products = [
        kernels.quantized_matmul(
            scales[expert], biases[expert], group_size, bits, rows[r if own else r // K], b[expert]
        )
        for r, expert in enumerate(experts.reshape(-1).tolist())
    ]
    return mx.concatenate(products).reshape(*experts.shape, b.shape[1])


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("tokens", "X", "K"),
    [((1,), 8, 2), ((3,), 4, 4), ((40,), 5, 3), ((2, 7), 16, 1)],
    ids=["one token", "all experts", "many tokens", "two dimensions"],
)
def test_rows_are_bitwise_equal_to_single_products(instruction_set, half, bits, tokens, X, K):
    scales, biases, b = stack(X, 130, 192, bits, dtype=half)
    experts = mx.random.randint(0, X, (*tokens, K))
    for a in (random(*tokens, 192, dtype=half), random(*tokens, K, 192, dtype=half)):
        product = kernels.grouped_quantized_matmul(scales, biases, 64, bits, a, b, experts)
        mx.eval(product)
        expected = one_by_one(scales, biases, 64, bits, a, b, experts)
        assert_same_bits(product, expected, f"a of shape {a.shape}")


def test_prepacked_weights_are_bitwise_equal(prepacked_isa):
    arguments = quantized(2 * kernels.prepack_rows(), 256, mx.bfloat16, experts=[5])
    arguments |= {
        "a": random(9, 256, dtype=mx.bfloat16),
        "experts": mx.random.randint(0, 5, (9, 2)),
    }
    symmetric = prepacked(arguments | {"biases": arguments["scales"] * -8})
    no_biases = symmetric | {"biases": symmetric["biases"][:, :, :0]}
    for M in (9, 1):
        some = {name: arguments[name][:M] for name in ("a", "experts")}
        plain, fast, stored, derived = (
            kernels.grouped_quantized_matmul(**each | some)
            for each in (arguments, prepacked(arguments), symmetric, no_biases)
        )
        assert_same_bits(fast, plain, f"{M} tokens")
        assert_same_bits(derived, stored, f"{M} tokens, symmetric weights")


def test_course_kernels_multiply_experts(on_cpu, monkeypatch):
    monkeypatch.setenv("TINY_LLM_CPU_ISA", kernels.extension().instruction_sets()[-1])
    monkeypatch.setenv("TINY_LLM_MATMUL", "panels")
    if kernels.extension().instruction_set() == "portable":
        pytest.skip("needs AVX2, AVX-512 or NEON")
    scales, biases, b = (
        prepack_weight(part.reshape(-1, part.shape[-1]), 32) for part in stack(4, 64, 128)
    )
    experts = mx.random.randint(0, 4, (12, 2))
    a = random(12, 128, dtype=mx.bfloat16)
    stacks = [part.reshape(4, 2, *part.shape[1:]) for part in (scales, biases, b)]
    together = kernels.grouped_quantized_matmul(*stacks[:2], 64, 4, a, stacks[2], experts)
    for row in range(12):
        expert = experts[row, 1].item()
        parts = [part[expert] for part in stacks]
        alone = kernels.quantized_matmul(*parts[:2], 64, 4, a[row], parts[2])
        assert_same_bits(together[row, 1], alone, f"row {row}, expert {expert}")


def test_out_of_range_experts(instruction_set):
    """Negative indices count from the end; other invalid experts give NaN."""
    scales, biases, b = stack(4, 32, 64)
    a = random(6, 64, dtype=mx.bfloat16)
    product = kernels.grouped_quantized_matmul(
        scales, biases, 64, 4, a, b, mx.array([[0], [-1], [4], [-5], [2**31 - 1], [3]])
    )
    mx.eval(product)
    expected = one_by_one(scales, biases, 64, 4, a, b, mx.array([[0], [3], [0], [0], [0], [3]]))
    for row in (0, 1, 5):
        assert_same_bits(product[row], expected[row], f"row {row}")
    assert mx.isnan(product[2:5]).all()
    invalid = mx.full((6, 1), 4)
    product = kernels.grouped_quantized_matmul(scales, biases, 64, 4, a, b, invalid)
    assert mx.isnan(product).all(), "no expert is valid"


def test_unselected_expert_is_not_read(instruction_set):
    scales, biases, b = stack(4, 32, 64)
    scales[2] = mx.nan
    experts = mx.array([[0, 1], [3, 1]])
    a = random(2, 64, dtype=mx.bfloat16)
    assert mx.isfinite(kernels.grouped_quantized_matmul(scales, biases, 64, 4, a, b, experts)).all()


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
        assert_same_bits(product, alone, f"matrix {n}")


def test_mixed_layer_types():
    x, plain = random(3, 128, dtype=mx.bfloat16), random(5, 128, dtype=mx.bfloat16)

    def weights_of(O, bits):
        [scales], [biases], [b] = matrices(128, [O], bits, 64, mx.bfloat16)
        return QuantizedWeights(scales, biases, 64, bits, b)

    for weights in ([weights_of(7, 4), weights_of(9, 4)], [weights_of(7, 4), weights_of(9, 8)]):
        for mixed in (weights, [*weights, plain], [plain, plain]):
            for product, w in zip(project_each(x, mixed), mixed, strict=True):
                assert mx.array_equal(product, project(x, w))
