"""Loading: all formats of Qwen3 checkpoints, and malformed folders."""

from pathlib import Path
from unittest import mock

import mlx.core as mx
import pytest

from benchmark.make_checkpoint import qwen3_config, write_checkpoint
from tests.support import assert_close, assert_same_bits
from tiny_llm import (
    ModelError,
    Qwen3ModelWeek1,
    dispatch_model,
    kernels,
    load,
    load_weights,
    shortcut_name_to_full_name,
)
from tiny_llm.demo import DRAFT_PATH, HYBRID_PATH, TARGET_PATH

IDS = mx.array([[1, 2, 3, 500, 7]])
OFFLINE = "not on this machine, and HF_HUB_OFFLINE"
UNKNOWN = ("nonsense", "./no/such/folder", "/no/such", "~/no-such-model", "a/b/c")


def small_config(tied: bool = True) -> dict:
    return qwen3_config(128, 2, 256, 4, 2, tied, head_dim=64, vocab_size=4608)


@pytest.mark.parametrize(
    ("bits", "group_size", "dtype", "tied"),
    [
        (4, 32, mx.bfloat16, True),
        (4, 64, mx.float16, False),
        (4, 128, mx.bfloat16, False),
        (8, 32, mx.bfloat16, False),
        (8, 64, mx.bfloat16, True),
        (8, 128, mx.float16, True),
        (None, 128, mx.bfloat16, True),
        (None, 128, mx.bfloat16, False),
        (None, 128, mx.float32, False),
    ],
)
def test_formats(tmp_path, bits, group_size, dtype, tied):
    write_checkpoint(tmp_path, small_config(tied), bits, group_size, dtype=dtype)
    mlx_model, tokenizer = load(str(tmp_path))
    actual = Qwen3ModelWeek1(mlx_model)(IDS)
    assert actual.dtype == (dtype if bits is None else mx.bfloat16)
    assert_close(actual, mlx_model(IDS), "logits", ulps=8)
    assert tokenizer.decode([0, 4607]), "expected each id to decode to text"
    assert_same_weights(mlx_model, tmp_path)


def assert_same_weights(mlx_model, folder: Path) -> None:
    """Asserts equal logits of every week's `load_weights` and `mlx_lm` models."""
    weights, _ = load_weights(str(folder))
    for week in (1, 2, 3):
        expected, actual = (logits(source, week) for source in (mlx_model, weights))
        assert_same_bits(actual, expected, f"week {week}: load_weights compared with mlx_lm")


def logits(mlx_model, week: int) -> mx.array:
    model = dispatch_model("test", mlx_model, week)
    return model(IDS) if week == 1 else model(IDS, 0, model.create_kv_cache())


def test_sharded(tmp_path):
    write_checkpoint(tmp_path, small_config(), shard_bytes=500_000)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    mlx_model, _ = load(str(tmp_path))
    assert_close(Qwen3ModelWeek1(mlx_model)(IDS), mlx_model(IDS), "logits", ulps=8)
    assert_same_weights(mlx_model, tmp_path)


@pytest.mark.parametrize(
    ("name", "full_name"),
    [
        ("qwen3-0.6b", "Qwen/Qwen3-0.6B-MLX-4bit"),
        ("qwen3-1.7b", "Qwen/Qwen3-1.7B-MLX-4bit"),
        ("qwen3-4b", "Qwen/Qwen3-4B-MLX-4bit"),
        ("Qwen3-8B", "Qwen/Qwen3-8B-MLX-4bit"),
        ("demo", str(TARGET_PATH)),
        ("demo-draft", str(DRAFT_PATH)),
        ("demo-hybrid", str(HYBRID_PATH)),
        ("mlx-community/Qwen3-0.6B-8bit", "mlx-community/Qwen3-0.6B-8bit"),
        ("some/folder/here", "some/folder/here"),
    ],
)
def test_short_names(name, full_name):
    assert shortcut_name_to_full_name(name) == full_name


@pytest.mark.parametrize(
    ("name", "message"), [("qwen3-8b", OFFLINE), *((name, "unknown model") for name in UNKNOWN)]
)
def test_unavailable_models(name, message, load_either):
    with pytest.raises(ModelError, match=message):
        load_either(name)


def test_dispatch_selects_the_model_of_a_week(demo):
    assert isinstance(dispatch_model("demo", demo[0], 1), Qwen3ModelWeek1)
    with pytest.raises(ModelError, match="week 9 has no model"):
        dispatch_model("demo", demo[0], 9)


def test_dispatch_rejects_scaled_rope(tmp_path, load_either):
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    write_checkpoint(tmp_path, {**small_config(), "rope_scaling": scaling})
    mlx_model, _ = load_either(str(tmp_path))
    with pytest.raises(ModelError, match="scales RoPE with 'yarn'"):
        dispatch_model("mine", mlx_model, 1)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_float32_weights_are_reported_on_a_cpu(tmp_path, capsys, dtype):
    write_checkpoint(tmp_path, small_config(), None, dtype=dtype)
    with mock.patch.object(kernels, "computes_on_cpu", return_value=True):
        load_weights(str(tmp_path), with_tokenizer=False)
    is_reported = "float32 weights are more than ten times slower" in capsys.readouterr().err
    assert is_reported == (dtype == mx.float32)
