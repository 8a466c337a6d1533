"""Week 2, day 2: quantized weights and their matrix multiplication on the CPU."""

from types import SimpleNamespace

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.metal.products import assert_product, exact_quantized, readable_quantized
from tests.ops.quantized_products import (
    HALVES,
    assert_exact_but_for_rounding,
    evaluated,
    problem,
)
from tests.support import (
    assert_close,
    random,
    tiny_model,
)
from tiny_llm import (
    QuantizedEmbedding,
    QuantizedWeights,
    Qwen3ModelWeek1,
    Qwen3ModelWeek2,
    quantized_linear,
    simple_generate,
    simple_generate_with_kv_cache,
)

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


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_task_2_is_exact_but_for_rounding(instruction_set, bits, group_size, half, shape):
    assert_exact_but_for_rounding(instruction_set, problem(*shape, bits, group_size, half))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
def test_task_2_equals_mlx(instruction_set, bits, half):
    scales, biases, group_size, _, a, b = args = problem(5, 256, 96, bits, 64, half)
    expected = mx.quantized_matmul(
        a, b, scales, biases, transpose=True, group_size=group_size, bits=bits, stream=mx.cpu
    )
    # MLX's CPU kernel adds up 256 products in the format of the activations; ours in float32.
    assert_close(evaluated(*args), expected, "quantized_matmul against MLX's", ulps=16)


@pytest.mark.parametrize("shape", [(256,), (3, 256), (2, 3, 256), (1, 1, 1, 256)])
def test_task_2_any_leading_dimensions(instruction_set, shape):
    scales, biases, group_size, bits, _, b = problem(1, 256, 67, 4, 128, mx.bfloat16)
    a = random(*shape, dtype=mx.bfloat16)
    actual = evaluated(scales, biases, group_size, bits, a, b)
    assert actual.shape == (*shape[:-1], 67)
    flat = evaluated(scales, biases, group_size, bits, a.reshape(-1, 256), b)
    assert_close(actual.reshape(-1, 67), flat, "leading dimensions are rows", ulps=0)


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
