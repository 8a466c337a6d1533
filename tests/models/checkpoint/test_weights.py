"""`load_weights` compared with `mlx_lm.load`; test_loading.py covers formats."""

import json
import os
import shutil
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from benchmark.make_checkpoint import qwen3_config, write_checkpoint
from tests.hostile.corruptions import INDEX, UP, WEIGHTS, apply, config, quantization, tensors
from tests.models.support import assert_same_arrays
from tests.models.test_loading import assert_same_weights, logits
from tests.support import assert_close
from tiny_llm import ModelError, demo, load, load_weights
from tiny_llm.models.checkpoint.dummy import random_checkpoint

SMALL = qwen3_config(128, 2, 256, 4, 2, True, head_dim=64, vocab_size=4608)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quantized")
    write_checkpoint(folder, SMALL, bits=4, group_size=64)
    return folder


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """Copy of the checkpoint for the test to edit."""
    return shutil.copytree(checkpoint, tmp_path / "edited")


def stored(folder: Path) -> dict[str, mx.array]:
    return dict(mx.load(str(folder / WEIGHTS)))


def requantize(folder: Path, bits: int | None, group_size: int = 64) -> None:
    """Requantizes a layer, or dequantizes it if `bits` is None."""
    names = [f"{UP}.{part}" for part in ("weight", "scales", "biases")]
    weight = mx.dequantize(*map(stored(folder).get, names), group_size=64, bits=4)
    parts = [weight] if bits is None else mx.quantize(weight, group_size, bits)
    apply(tensors(**dict(zip_longest(names, parts))), folder)


@pytest.mark.parametrize(("bits", "group_size"), [(8, 64), (4, 32), (8, 128)])
def test_layer_with_its_own_quantization(folder, bits, group_size):
    requantize(folder, bits, group_size)
    apply(quantization(**{UP: {"bits": bits, "group_size": group_size}}), folder)
    mlx_model, _ = load(str(folder))
    assert_same_weights(mlx_model, folder)
    # the shapes must suffice to infer the quantization
    apply(config(quantization={"bits": 4, "group_size": 64}), folder)
    leaf = load_weights(str(folder))[0].layers[1].mlp.up_proj
    assert (leaf.bits, leaf.group_size) == (bits, group_size)
    assert_same_weights(mlx_model, folder)


@pytest.mark.parametrize("named", [True, False])
def test_unquantized_layer(folder, named):
    requantize(folder, None)
    if named:
        apply(quantization(**{UP: False}), folder)
    assert "scales" not in load_weights(str(folder))[0].layers[1].mlp.up_proj
    assert_same_weights(load(str(folder))[0], folder)


def test_tied_embeddings_with_an_lm_head_tensor(tmp_path):
    write_checkpoint(tmp_path, SMALL)
    apply(tensors(**{"lm_head.weight": stored(tmp_path)["model.embed_tokens.weight"]}), tmp_path)
    assert_same_weights(load(str(tmp_path))[0], tmp_path)


def test_rope_parameters(folder):
    rope = {"rope_type": "default", "rope_theta": SMALL["rope_theta"]}
    apply(config(rope_theta=..., rope_parameters=rope), folder)
    assert_same_weights(load(str(folder))[0], folder)


def test_mxfp4():
    """mxfp4 weights are repacked for the CPU."""
    weights = random_checkpoint({**SMALL, "quantization": {"mode": "mxfp4"}})
    assert_close(logits(weights, 2), logits(weights, 1), "Week 2 compared with Week 1", ulps=8)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors", "bitsandbytes"])
def test_other_libraries_quantization_is_rejected(folder, method):
    apply(config(quantization=..., quantization_config={"quant_method": method, "bits": 4}), folder)
    message = f"quantized by '{method}', which is not an MLX format; use .* `mlx_lm.convert -q`"
    for load_either in (load, load_weights):
        with pytest.raises(ModelError, match=message):
            load_either(str(folder))


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (f"{UP}.weight", None, "is missing from the checkpoint; .* implies shape 256×16"),
        (f"{UP}.scales", None, "has shape 256×16, expected 256×128"),
        (f"{UP}.biases", None, "is missing from the checkpoint; .* implies shape 256×2"),
        (
            f"{UP}.weight",
            mx.zeros((255, 16), mx.uint32),
            "has shape 255×16, expected 256×16 for 4 bits",
        ),
        (f"{UP}.weight", mx.zeros((256, 17), mx.uint32), "has shape 256×17, expected 256×16"),
        (f"{UP}.scales", mx.zeros((256,)), "has shape 256, expected 256×2"),
        (f"{UP}.biases", mx.zeros((256, 3)), "has shape 256×3, expected 256×2"),
        ("model.norm.weight", None, "is missing from the checkpoint; .* implies shape 128"),
        ("model.norm.weight", mx.zeros((127,)), "has shape 127, expected 128"),
        (f"{UP}.bias", mx.zeros((256,)), "is not a tensor of a qwen3"),
        ("model.layers.2.mlp.up_proj.weight", mx.zeros((256, 128)), "is not a tensor of a qwen3"),
    ],
)
def test_mismatched_tensor_is_named(folder, name, array, message):
    apply(tensors(**{name: array}), folder)
    named = name.replace(".scales", ".weight") if "expected 256×128" in message else name
    with pytest.raises(ModelError, match=f"cannot be loaded: {named} {message}") as error:
        load_weights(str(folder))
    assert "\n" not in str(error.value)


ENGINE = """if True:
    from tiny_llm import LLM, SamplingParams
    from tiny_llm.models import loading

    loading.SECONDS_WITHOUT_PROGRESS = 0  # as with a large model
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    [output] = LLM("demo").generate([chat], SamplingParams(temperature=0, max_tokens=20))
    print(output.text)
"""
COMMAND = """if True:
    from tiny_llm.cli.main import main

    main(["--model", "demo", "--prompt", "What is the capital of France?"])
"""


@pytest.mark.parametrize(
    ("program", "unwanted"),
    [
        (ENGINE, ["transformers", "mlx_lm", "huggingface_hub", "numpy", "rich"]),
        (COMMAND, ["transformers", "mlx_lm", "huggingface_hub", "numpy", "rich.progress"]),
    ],
    ids=["LLM", "main"],
)
def test_serving_does_not_import_heavy_libraries(program, unwanted):
    """Importing these libraries would take seconds and much memory."""
    program += f"\nimport sys\nprint(sorted({{*{unwanted}}} & set(sys.modules)))"
    result = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        # without the emulator, which imports NumPy
        env={**os.environ, "TINY_LLM_EMULATED_METAL": "0"},
    )
    assert "Paris" in result.stdout, result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


def test_symbolic_links_are_followed(tmp_path):
    for file in demo.TARGET_PATH.iterdir():
        (tmp_path / file.name).symlink_to(file)
    assert_same_arrays(arrays_of(tmp_path), arrays_of("demo"))


def arrays_of(folder: Path | str) -> dict[str, mx.array]:
    return dict(tree_flatten(load_weights(str(folder))[0]))


def write_index(folder: Path, files: dict[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))


def test_other_safetensors_files_are_not_read(folder, capsys):
    """Copies of the weights and sidecars, some of them in the index."""
    expected, weights = arrays_of(folder), stored(folder)
    for name in ("consolidated.safetensors", "mtp.safetensors"):
        mx.save_safetensors(str(folder / name), {**weights, "mtp.a": mx.ones(1)})
    index = dict.fromkeys(weights, WEIGHTS)
    write_index(folder, {**index, "mtp.a": "mtp.safetensors", "b": "optiq/v.safetensors"})
    assert_same_arrays(arrays_of(folder), expected)
    assert capsys.readouterr().err == ""


def test_complete_file_is_preferred_to_a_stale_index(folder, capsys):
    expected, shard = arrays_of(folder), "model-00001-of-00001.safetensors"
    write_index(folder, dict.fromkeys(stored(folder), shard))
    for _ in range(2):
        assert_same_arrays(arrays_of(folder), expected)
        [line] = capsys.readouterr().err.splitlines()
        assert "read model.safetensors only; model.safetensors.index.json lists other" in line
        shutil.copy(folder / WEIGHTS, folder / shard)
    (folder / WEIGHTS).unlink()
    assert_same_arrays(arrays_of(folder), expected)
    assert capsys.readouterr().err == ""


def test_missing_and_unexpected_tensors_are_named(folder):
    moved = {name: array for name, array in stored(folder).items() if ".layers.1." in name}
    renamed = {name.replace("layers.1", "layers.7"): array for name, array in moved.items()}
    apply(tensors(**dict.fromkeys(moved), **renamed), folder)
    with pytest.raises(ModelError, match=r"and \d+ more are missing .*; .* \d+ more are not") as e:
        load_weights(str(folder))
    assert str(e.value).count("layers.1.") == str(e.value).count("layers.7.") == 5


def test_ignored_fields_are_listed_once(folder, capsys):
    apply(config(mystery=3, other_thing=[1], return_dict=True, off=False), folder)
    load_weights(str(folder))
    [line] = capsys.readouterr().err.splitlines()
    expected = ": ignored unknown fields of config.json: mystery, other_thing, return_dict."
    assert line.endswith(expected)
