"""Cost of a token, derived from a loaded model's weights."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from benchmark.model_costs import ModelCosts
from tests.support import tiny_model
from tiny_llm import Qwen3ModelWeek3


def test_model_costs():
    checkpoint = tiny_model(dtype=mx.bfloat16, hidden_size=64, intermediate_size=96)
    nn.quantize(checkpoint, group_size=32, bits=4)
    model = Qwen3ModelWeek3(checkpoint)
    costs = ModelCosts.from_model(checkpoint.args, model)
    assert costs.kv_bytes_per_token == model.kv_bytes_per_token
    E, I, V, layers = 64, 96, 131, 3
    weights = layers * (E * 16 * (2 * 4 + 2 * 2) + 3 * E * I) + V * E
    stored = weights * (4 + 32 / 32) / 8  # 4 bits, plus a scale and a bias per group of 32
    kv_bytes = 100 * model.kv_bytes_per_token
    assert costs.decode_bytes(1, 0) == pytest.approx(stored)
    assert costs.decode_bytes(1, 100) == pytest.approx(stored + kv_bytes)
    assert costs.decode_bytes(4, 100) == pytest.approx(stored + 4 * kv_bytes)
    assert costs.decode_flops(1, 0) == 2 * weights
    assert costs.decode_flops(1, 10) - costs.decode_flops(1, 0) == 4 * 10 * layers * 4 * 16
