"""Week 2, day 2: quantized weights and their matrix multiplication on the CPU."""

from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from tests.metal.products import assert_product, exact_quantized, readable_quantized
from tests.support import (
    EPSILON,
    as_numpy,
    assert_close,
    assert_same_on_any_number_of_threads,
    random,
    tiny_model,
)
from tiny_llm import (
    QuantizedEmbedding,
    QuantizedWeights,
    Qwen3ModelWeek1,
    Qwen3ModelWeek2,
    kernels,
    quantized_linear,
    quantized_matmul,
    simple_generate,
    simple_generate_with_kv_cache,
)

HALVES = [mx.bfloat16, mx.float16]
SHAPES = [  # M, I, O
    (1, 128, 64),
    (2, 384, 33),
    (3, 128, 1),
    (7, 256, 67),
    (16, 1024, 130),
    (33, 640, 200),
    (67, 256, 128),
    (300, 128, 64),
]


def problem(M, I, O, bits, group_size, dtype):
    a = random(M, I, dtype=dtype)
    b, scales, biases = mx.quantize(random(O, I, dtype=dtype), group_size=group_size, bits=bits)
    return scales, biases, group_size, bits, a, b


def exact(scales, biases, group_size, bits, a, b) -> tuple[np.ndarray, np.ndarray]:
    """The product in float64, and Σ |w·a|, which bounds the error of any order of summation."""
    w = mx.dequantize(
        b,
        scales.astype(mx.float32),
        biases.astype(mx.float32),
        group_size=group_size,
        bits=bits,
    )
    w, a = as_numpy(w).astype(np.float64), as_numpy(a).astype(np.float64)
    return a @ w.T, np.abs(a) @ np.abs(w).T


def fixed_point_error(instruction_set, scales, biases, group_size, bits, a, b) -> np.ndarray | int:
    """What AVX2, NEON and AMX may add: activations rounded to integers, in steps of their group's.

    A step is the smallest power of two with which the largest magnitude is less than 255/128 · 2^14
    steps: half of it is at most 2^-15 · 128/127.5 of that magnitude. A second row of integers for
    float16 has steps 2^15 times finer.
    """
    if instruction_set not in ("avx2", "neon", "amx"):
        return 0
    groups = as_numpy(mx.abs(a)).reshape(*a.shape[:-1], -1, group_size).astype(np.float64)
    rounded = 2.0 ** (-15 if a.dtype == mx.bfloat16 else -30) * 128 / 127.5 * groups.max(-1)
    w = mx.dequantize(b, scales.astype(mx.float32), biases.astype(mx.float32), group_size, bits)
    sums = as_numpy(mx.abs(w)).reshape(w.shape[0], -1, group_size).astype(np.float64).sum(-1)
    return rounded @ sums.T


def evaluated(*args) -> mx.array:
    result = quantized_matmul(*args)
    mx.eval(result)  # while the environment names the instruction set
    return result


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_task_2_is_exact_but_for_rounding(instruction_set, bits, group_size, half, shape):
    assert_exact_but_for_rounding(instruction_set, problem(*shape, bits, group_size, half))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("outlier", [100, 1e4, 255, -255])
def test_task_2_outliers_and_tiny_numbers(instruction_set, bits, half, outlier):
    scales, biases, group_size, _, a, b = problem(5, 256, 40, bits, 128, half)
    a[0, 3] = outlier  # in the first of the row's two groups
    a[1] *= 1e-4
    a[2, :128] = 0
    a[3] = a[3] * 2.0 ** (-10 * mx.random.uniform(shape=(256,)))
    a[4] = 2.0**-24 if half == mx.float16 else 2.0**-100
    assert_exact_but_for_rounding(instruction_set, (scales, biases, group_size, bits, a, b))


def assert_exact_but_for_rounding(instruction_set, args):
    half, I = args[4].dtype, args[4].shape[-1]
    bits = args[3]
    actual = as_numpy(evaluated(*args)).astype(np.float64)
    expected, magnitude = exact(*args)
    # One rounding to the output's format, and float32 sums of I terms each for q·a and for a,
    # whose own terms are larger than those of w·a: q·scale is up to 2^bits steps of a group.
    steps = 2.0**bits * as_numpy(mx.abs(args[0])).max() + as_numpy(mx.abs(args[1])).max()
    sums = 2.0**-24 * np.sqrt(I) * steps * np.abs(as_numpy(args[4])).sum(1, keepdims=True)
    bound = EPSILON[half] / 2 * np.abs(expected) + sums + 1e-7 * magnitude
    bound += fixed_point_error(instruction_set, *args)
    bound += 2.0**-25 if half == mx.float16 else 0  # half of its smallest number
    worst = (np.abs(actual - expected) / bound).max()
    assert worst <= 1.01, (
        f"{worst:.2f} × the error bound of float32 sums, fixed point and one rounding"
    )


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_task_2_equals_mlx(instruction_set, bits, half):
    scales, biases, group_size, _, a, b = args = problem(5, 256, 96, bits, 64, half)
    expected = mx.quantized_matmul(
        a, b, scales, biases, transpose=True, group_size=group_size, bits=bits, stream=mx.cpu
    )
    # MLX's CPU kernel adds up 256 products in the format of the activations; ours in float32.
    assert_close(evaluated(*args), expected, "quantized_matmul against MLX's", ulps=16)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("M", [2, 3, 5, 6, 7, 13, 64, 193, 389])
def test_task_2_a_row_does_not_depend_on_its_company(instruction_set, bits, half, M):
    scales, biases, group_size, _, a, b = problem(M, 256, 70, bits, 64, half)
    together = as_numpy(evaluated(scales, biases, group_size, bits, a, b))
    for row in {0, 1, M // 2, M - 1}:
        alone = evaluated(scales, biases, group_size, bits, a[row : row + 1], b)
        np.testing.assert_array_equal(as_numpy(alone)[0], together[row], "bit for bit")


def test_task_2_threads_do_not_change_a_bit():
    program = (
        "import mlx.core as mx, numpy as np, tiny_llm_ext as t; mx.random.seed(3);"
        "w = mx.random.normal((1030, 512)).astype(mx.bfloat16);"
        "a = mx.random.normal((9, 512)).astype(mx.bfloat16);"
        "q, s, b = mx.quantize(w, group_size=64, bits=4);"
        "y = t.quantized_matmul(s, b, 64, 4, a, q, stream=mx.cpu).astype(mx.float32);"
        "print(t.num_threads(), hash(np.array(y).tobytes()))"
    )
    assert_same_on_any_number_of_threads(program)


@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("M", [1, 2, 3, 16, 33])
def test_task_2_amx_and_avx2_give_the_same_bits(monkeypatch, half, bits, group_size, M):
    if "amx" not in kernels.extension().instruction_sets():
        pytest.skip("this machine has no AMX")
    arguments = problem(M, 384, 70, bits, group_size, half)
    results = []
    for name in ("amx", "avx2"):
        monkeypatch.setenv("TINY_LLM_CPU_ISA", name)
        results.append(evaluated(*arguments))
    assert mx.array_equal(*results), "both add up the same integers and round the same floats"


@pytest.mark.parametrize("shape", [(256,), (3, 256), (2, 3, 256), (1, 1, 1, 256)])
def test_task_2_any_leading_dimensions(instruction_set, shape):
    scales, biases, group_size, bits, _, b = problem(1, 256, 67, 4, 128, mx.bfloat16)
    a = random(*shape, dtype=mx.bfloat16)
    actual = evaluated(scales, biases, group_size, bits, a, b)
    assert actual.shape == (*shape[:-1], 67)
    flat = evaluated(scales, biases, group_size, bits, a.reshape(-1, 256), b)
    assert_close(actual.reshape(-1, 67), flat, "leading dimensions are rows", ulps=0)


def test_task_2_strided_activations(instruction_set):
    scales, biases, group_size, bits, _, b = problem(1, 128, 64, 4, 64, mx.bfloat16)
    a = random(6, 256, dtype=mx.bfloat16)[::2, ::2]
    expected = evaluated(scales, biases, group_size, bits, mx.contiguous(a), b)
    assert_close(evaluated(scales, biases, group_size, bits, a, b), expected, "strides", ulps=0)


def test_task_2_no_rows_and_no_outputs(instruction_set):
    scales, biases, group_size, bits, _, b = problem(1, 128, 64, 4, 64, mx.bfloat16)
    empty = evaluated(scales, biases, group_size, bits, mx.zeros((0, 128), mx.bfloat16), b)
    assert empty.shape == (0, 64)
    a = mx.zeros((2, 128), mx.bfloat16)
    assert evaluated(scales[:0], biases[:0], group_size, bits, a, b[:0]).shape == (2, 0)


@pytest.mark.parametrize("value", [mx.nan, mx.inf, -mx.inf])
def test_task_2_nan_and_infinity_stay_in_their_row(instruction_set, value):
    scales, biases, group_size, bits, a, b = problem(3, 128, 64, 4, 64, mx.bfloat16)
    clean = as_numpy(evaluated(scales, biases, group_size, bits, a, b))
    a[1, 5] = value
    dirty = as_numpy(evaluated(scales, biases, group_size, bits, a, b))
    assert not np.isfinite(dirty[1]).any()
    np.testing.assert_array_equal(dirty[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transpose_b": False}, "expected transpose_b=True"),
        ({"bits": 3}, "expected bits 4 or 8, got 3"),
        ({"group_size": 16}, "expected group_size 32, 64 or 128, got 16"),
        ({"group_size": 128}, "expected scales of shape"),
        ({"bits": 8}, "expected b of shape"),
        ({"a": mx.zeros((2, 128))}, "expected a in float16 or bfloat16, got float32"),
        ({"a": mx.zeros((2, 100), mx.bfloat16)}, "positive multiple of group_size"),
        ({"a": mx.zeros((2, 192), mx.bfloat16)}, "expected b of shape"),
        ({"a": mx.array(1.0, mx.bfloat16)}, "at least one dimension"),
        ({"b": mx.zeros((64, 16), mx.int32)}, "expected b in uint32, got int32"),
        ({"b": mx.zeros((64,), mx.uint32)}, "expected b with 2 dimensions"),
        ({"scales": mx.zeros((64, 2))}, "expected scales in float16 or bfloat16, got float32"),
        ({"scales": mx.zeros((64, 3), mx.bfloat16)}, "expected scales of shape"),
        ({"biases": mx.zeros((64, 3), mx.bfloat16)}, "expected biases of shape"),
        ({"biases": mx.zeros((64, 2), mx.float16)}, "expected biases in the dtype of scales"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_task_2_wrong_arguments_are_named(changes, message):
    scales, biases, group_size, bits, a, b = problem(2, 128, 64, 4, 64, mx.bfloat16)
    arguments = {
        "scales": scales,
        "biases": biases,
        "group_size": group_size,
        "bits": bits,
        "a": a,
        "b": b,
    }
    with pytest.raises(ValueError, match=rf"\[quantized_matmul\] .*{message}"):
        quantized_matmul(**{**arguments, **changes})


def test_task_2_unknown_instruction_set(on_cpu, monkeypatch):
    args = problem(1, 128, 64, 4, 64, mx.bfloat16)
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "sse9")
    with pytest.raises(ValueError, match='TINY_LLM_CPU_ISA is "sse9"'):
        mx.eval(quantized_matmul(*args))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_task_3_the_readable_metal_kernel(bits, group_size, half, shape):
    scales, biases, _, _, a, b = problem(*shape, bits, group_size, half)
    other = mx.float16 if half == mx.bfloat16 else mx.bfloat16  # scales that the others do not take
    scales, biases = scales.astype(other), biases.astype(other)
    actual = readable_quantized(scales, biases, group_size, bits, a, b)
    expected = exact_quantized(scales, biases, a, b, group_size, bits)
    assert_product(actual, *expected, shape[1], "quantized_matmul_readable")


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
def test_task_1_quantized_linear(bits, group_size):
    layer = nn.Linear(256, 96, bias=True)
    layer.set_dtype(mx.bfloat16)
    quantized = layer.to_quantized(group_size=group_size, bits=bits)
    quantized.bias = random(96, dtype=mx.bfloat16, scale=5)
    weights = QuantizedWeights.from_mlx_layer(quantized)
    named = SimpleNamespace(**quantized.parameters(), group_size=group_size, bits=bits)
    assert QuantizedWeights.from_mlx_layer(named).scales is weights.scales, "what has the names"
    assert (weights.group_size, weights.bits) == (group_size, bits)
    x = random(2, 3, 256, dtype=mx.bfloat16)
    with mx.stream(mx.cpu):
        expected = quantized(x)
    assert_close(quantized_linear(x, weights, quantized.bias), expected, "quantized_linear", 16)


def test_task_1_layers_that_are_not_affine():
    with pytest.raises(ValueError, match="not quantized"):
        QuantizedWeights.from_mlx_layer(nn.Linear(64, 64))
    layer = nn.Linear(64, 64, bias=False).to_quantized(group_size=32, bits=4, mode="mxfp4")
    with pytest.raises(ValueError, match="mode 'mxfp4'"):
        QuantizedWeights.from_mlx_layer(layer)


def test_task_1_quantized_embedding():
    oracle = nn.Embedding(131, 64)
    oracle.set_dtype(mx.bfloat16)
    oracle = oracle.to_quantized(group_size=32, bits=4)
    embedding = QuantizedEmbedding(131, 64, QuantizedWeights.from_mlx_layer(oracle))
    ids = mx.array([[0, 130], [7, 7]])
    assert_close(embedding(ids), oracle(ids), "embedding rows", ulps=0)
    x = random(2, 2, 64, dtype=mx.bfloat16)
    with mx.stream(mx.cpu):
        expected = oracle.as_linear(x)
    assert_close(embedding.as_linear(x), expected, "embedding as the output layer", ulps=16)


# --- task 4: in the model -------------------------------------------------------------------------

IDS = [3, 17, 130, 0, 3, 99, 5, 41, 8, 77, 2]


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 128), (8, 64)])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_task_4_quantized_logits_equal_mlx_lm(bits, group_size, dtype):
    oracle = tiny_model(
        dtype, hidden_size=128, intermediate_size=256, head_dim=32, tie_word_embeddings=False
    )
    nn.quantize(oracle, group_size=group_size, bits=bits)
    model = Qwen3ModelWeek2(oracle)
    actual = model(mx.array([IDS]), 0, model.create_kv_cache())
    assert actual.dtype == dtype
    assert_close(actual, oracle(mx.array([IDS])), "logits", ulps=16)


@pytest.mark.parametrize(
    ("bits", "dtype", "message"),
    [(6, mx.bfloat16, "6 bits in groups of 64"), (4, mx.float32, "scales are mlx.core.float32")],
)
def test_task_4_what_no_kernel_reads_is_refused_with_the_model(bits, dtype, message):
    mlx_model = tiny_model(dtype, hidden_size=128, intermediate_size=256)
    nn.quantize(mlx_model, group_size=64, bits=bits)
    with pytest.raises(ValueError, match=message):
        Qwen3ModelWeek2(mlx_model)


@pytest.mark.parametrize(
    "question", ["What is the capital of France?", "What is the KV cache?", "What is 17 + 25?"]
)
def test_task_4_demo_model_says_the_same_with_and_without_cache(demo, question):
    mlx_model, tokenizer = demo
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, enable_thinking=False
    )
    expected = simple_generate(Qwen3ModelWeek1(mlx_model), tokenizer, prompt, max_tokens=40)
    model = Qwen3ModelWeek2(mlx_model)
    assert simple_generate_with_kv_cache(model, tokenizer, prompt, max_tokens=40) == expected
