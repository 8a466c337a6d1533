"""Week 2, day 3: quantized matmul in Metal and in the model."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.metal.matmuls import assert_matmul_close, exact_quantized, reference_quantized
from tests.ops.quantized_matmul_problems import HALVES, problem
from tests.support import assert_close, chat_prompt, tiny_model
from tests.week_2.test_day_2 import SHAPES
from tiny_llm import (
    Qwen3ModelWeek1,
    Qwen3ModelWeek2,
    simple_generate,
    simple_generate_with_kv_cache,
)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("shape", SHAPES[:4], ids=str)
def test_task_3_readable_metal_kernel(bits, group_size, half, shape):
    scales, biases, _, _, a, b = problem(*shape, bits, group_size, half)
    # A dtype of scales that only the readable kernel supports.
    other = mx.float16 if half == mx.bfloat16 else mx.bfloat16
    scales, biases = scales.astype(other), biases.astype(other)
    actual = reference_quantized(scales, biases, group_size, bits, a, b)
    expected = exact_quantized(scales, biases, a, b, group_size, bits)
    assert_matmul_close(actual, *expected, shape[1], "quantized_matmul_readable")


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
    [(6, mx.bfloat16, "6 bits in groups of 64"), (4, mx.float32, "scales, got mlx.core.float32")],
)
def test_task_4_unsupported_quantization_is_rejected_at_load(bits, dtype, message):
    mlx_model = tiny_model(dtype, hidden_size=128, intermediate_size=256)
    nn.quantize(mlx_model, group_size=64, bits=bits)
    with pytest.raises(ValueError, match=message):
        Qwen3ModelWeek2(mlx_model)


@pytest.mark.parametrize(
    "question",
    [
        "What is the capital of France?",
        pytest.param("What is the KV cache?", marks=pytest.mark.slow),
        pytest.param("What is 17 + 25?", marks=pytest.mark.slow),
    ],
)
def test_task_4_demo_output_is_the_same_with_and_without_cache(demo, question):
    mlx_model, tokenizer = demo
    prompt = chat_prompt(tokenizer, question)
    expected = simple_generate(Qwen3ModelWeek1(mlx_model), tokenizer, prompt, max_tokens=40)
    model = Qwen3ModelWeek2(mlx_model)
    assert simple_generate_with_kv_cache(model, tokenizer, prompt, max_tokens=40) == expected
