"""Week 1, day 5: the transformer block, the embedding and the whole model."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.support import assert_close, random, tiny_model
from tiny_llm import Embedding, Qwen3ModelWeek1, Qwen3TransformerBlock, dequantize_linear

IDS = [[3, 17, 130, 0, 3, 99, 5]]


@pytest.mark.parametrize("mask", [None, "causal"])
def test_task_1_block(device, dtype, mask):
    model = tiny_model(dtype)
    args, oracle = model.args, model.model.layers[0]
    attention, mlp = oracle.self_attn, oracle.mlp
    heads = args.num_attention_heads, args.num_key_value_heads
    sizes = args.hidden_size, args.head_dim, args.intermediate_size
    layers = [getattr(attention, f"{name}_proj") for name in "qkvo"]
    layers += [attention.q_norm, attention.k_norm, mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    layers += [oracle.input_layernorm, oracle.post_attention_layernorm]
    weights = [layer.weight for layer in layers]
    limits = args.max_position_embeddings, args.rope_theta
    block = Qwen3TransformerBlock(*heads, *sizes, args.rms_norm_eps, *weights, *limits)
    x = random(2, 9, 48, dtype=dtype)
    hint = "norm, attention, add; norm, MLP, add"
    assert_close(block(x, mask), oracle(x, mask), f"transformer block ({hint})", ulps=8)


def test_task_2_embedding(device, dtype):
    oracle = nn.Embedding(131, 48)
    oracle.set_dtype(dtype)
    embedding = Embedding(131, 48, oracle.weight)
    ids = mx.array([[0, 130, 7], [7, 7, 1]])
    assert_close(embedding(ids), oracle(ids), "embedding rows", ulps=0)
    x = random(2, 3, 48, dtype=dtype)
    assert_close(embedding.as_linear(x), oracle.as_linear(x), "embedding as the output layer")


def test_task_2_embedding_of_the_wrong_shape():
    with pytest.raises(ValueError, match="must have shape \\(10, 4\\)"):
        Embedding(10, 4, mx.zeros((4, 10)))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("tied", [True, False])
def test_task_3_model(device, dtype, heads, tied):
    oracle = tiny_model(
        dtype, num_attention_heads=heads[0], num_key_value_heads=heads[1], tie_word_embeddings=tied
    )
    actual = Qwen3ModelWeek1(oracle)(mx.array(IDS))
    assert actual.shape == (1, 7, 131)
    assert_close(actual, oracle(mx.array(IDS)), "the model's logits", ulps=16)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 37, "head_dim": 6, "intermediate_size": 53, "vocab_size": 67},
        {"num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10},
        {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1},
        {"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-3},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_task_3_odd_sizes(device, changes):
    oracle = tiny_model(**changes)
    ids = mx.array(IDS) % oracle.args.vocab_size
    assert_close(Qwen3ModelWeek1(oracle)(ids), oracle(ids), "the model's logits", ulps=64)


def test_task_3_rows_and_prefixes_are_independent(device):
    model = Qwen3ModelWeek1(tiny_model())
    ids = mx.array([[1, 2, 3], [4, 5, 6]])
    together = model(ids)
    for row in range(2):
        assert_close(together[row : row + 1], model(ids[row : row + 1]), f"row {row}", ulps=16)
    short, long = model(mx.array([[1, 2, 3]])), model(mx.array([[1, 2, 3, 4, 5]]))
    assert_close(long[:, :3], short, "logits of a prefix (the mask must be causal)", ulps=16)


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 64), (8, 32)])
@pytest.mark.parametrize("tied", [True, False])
def test_task_3_quantized_weights_are_dequantized_to_bfloat16(device, bits, group_size, tied):
    oracle = tiny_model(
        mx.bfloat16, hidden_size=64, intermediate_size=128, tie_word_embeddings=tied
    )
    nn.quantize(oracle, group_size=group_size, bits=bits)
    model = Qwen3ModelWeek1(oracle)
    assert model.embedding.weight.dtype == mx.bfloat16
    actual, expected = model(mx.array(IDS)), oracle(mx.array(IDS))
    # The model rounds q·scale + bias to bfloat16 before the matmul; the reference does not.
    assert_close(actual, expected, f"logits with {bits}-bit weights", ulps=8)


@pytest.mark.parametrize("layer_type", [nn.Linear, nn.Embedding])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_task_3_dequantize_linear(device, layer_type, bits):
    layer = nn.Linear(64, 32, bias=False) if layer_type is nn.Linear else nn.Embedding(32, 64)
    assert dequantize_linear(layer) is layer.weight
    weight = dequantize_linear(layer.to_quantized(group_size=32, bits=bits))
    assert weight.shape == (32, 64)
    step = (layer.weight.max() - layer.weight.min()).item() / (2**bits - 1)
    assert mx.abs(weight - layer.weight).max().item() <= step
