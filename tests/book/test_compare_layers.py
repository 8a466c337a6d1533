"""Layer comparison: reports the first module with different output."""

import mlx.core as mx
import pytest

from tests.support import tiny_model
from tiny_llm import Qwen3ModelWeek1
from tools.compare_layers import TOLERANCE, compare


@pytest.fixture
def models():
    theirs = tiny_model(mx.float32)
    return Qwen3ModelWeek1(theirs), theirs


@pytest.mark.parametrize("tied", [True, False])
def test_correct_models_differ_by_rounding(tied):
    theirs = tiny_model(mx.float32, tie_word_embeddings=tied)
    errors = dict(compare(Qwen3ModelWeek1(theirs), theirs, mx.array([[1, 5, 9, 2, 2, 7]])))
    assert len(errors) == 3 + 2 * 3
    assert max(errors.values()) <= TOLERANCE / 10


def test_only_the_faulty_layer_differs(models):
    ours, theirs = models
    mlp = ours.layers[1].mlp
    mlp.w_gate, mlp.w_up = mlp.w_up, mlp.w_gate
    errors = dict(compare(ours, theirs, mx.array([[1, 5, 9, 2, 2, 7]])))
    assert [name for name, error in errors.items() if error > TOLERANCE] == ["layer 1 MLP"]


def test_nan_and_wrong_shapes_differ(models):
    ours, theirs = models
    ours.layers[0].self_attn = lambda x, mask: x * mx.nan
    ours.norm = lambda x: x[:, :1]
    errors = dict(compare(ours, theirs, mx.array([[1, 5]])))
    wrong = [name for name, error in errors.items() if error == float("inf")]
    assert wrong == ["layer 0 attention", "last norm"]
