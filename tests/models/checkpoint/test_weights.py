"""`load_weights` compared with `mlx_lm.load`; test_loading.py covers formats."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from benchmark.make_checkpoint import qwen3_config, write_checkpoint
from tests.models.support import assert_same_arrays
from tests.models.test_loading import assert_same_weights, logits
from tests.support import assert_close
from tiny_llm import ModelError, Qwen3ModelWeek2, demo, kernels, load, load_weights
from tiny_llm.models.checkpoint.weights import CheckpointModel

PROJECTION = "model.layers.1.mlp.up_proj"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("quantized")
    config = qwen3_config(128, 2, 256, 4, 2, True, head_dim=64, vocab_size=4608)
    write_checkpoint(folder, config, bits=4, group_size=64)
    return folder


class Editor:
    """Editable copy of a checkpoint."""

    def __init__(self, checkpoint: Path, folder: Path):
        shutil.copytree(checkpoint, folder)
        self.folder = folder
        self.config = json.loads((folder / "config.json").read_text())
        self.weights = dict(mx.load(str(folder / "model.safetensors")))
        mx.eval(self.weights)

    def save(self) -> str:
        (self.folder / "config.json").write_text(json.dumps(self.config))
        mx.save_safetensors(str(self.folder / "model.safetensors"), self.weights)
        return str(self.folder)

    def requantize(self, path: str, bits: int | None, group_size: int = 64) -> None:
        """Requantizes one layer, or dequantizes it if `bits` is None."""
        parts = [self.weights.pop(f"{path}.{part}") for part in ("weight", "scales", "biases")]
        weight = mx.dequantize(*parts, group_size=64, bits=4)
        if bits is None:
            self.weights[f"{path}.weight"] = weight
            return
        parts = mx.quantize(weight, group_size=group_size, bits=bits)
        for part, array in zip(("weight", "scales", "biases"), parts, strict=True):
            self.weights[f"{path}.{part}"] = array


@pytest.fixture
def editor(checkpoint, tmp_path) -> Editor:
    return Editor(checkpoint, tmp_path / "edited")


@pytest.mark.parametrize(("bits", "group_size"), [(8, 64), (4, 32), (8, 128)])
def test_layer_with_its_own_quantization(editor, bits, group_size):
    editor.requantize(PROJECTION, bits, group_size)
    editor.config["quantization"][PROJECTION] = {"bits": bits, "group_size": group_size}
    mlx_model, _ = load(editor.save())
    assert_same_weights(mlx_model, editor.folder)
    # the shapes must suffice to infer the quantization
    del editor.config["quantization"][PROJECTION]
    leaf = load_weights(editor.save())[0].layers[1].mlp.up_proj
    assert (leaf.bits, leaf.group_size) == (bits, group_size)
    assert_same_weights(mlx_model, editor.folder)


@pytest.mark.parametrize("named", [True, False])
def test_unquantized_layer(editor, named):
    editor.requantize(PROJECTION, None)
    if named:
        editor.config["quantization"][PROJECTION] = False
    folder = editor.save()
    assert "scales" not in load_weights(folder)[0].layers[1].mlp.up_proj
    assert_same_weights(load(folder)[0], editor.folder)


def test_tied_embeddings_with_an_lm_head_tensor(tmp_path):
    config = qwen3_config(128, 1, 128, 2, 1, True, head_dim=64, vocab_size=4200)
    write_checkpoint(tmp_path / "plain", config)
    editor = Editor(tmp_path / "plain", tmp_path / "edited")
    editor.weights["lm_head.weight"] = editor.weights["model.embed_tokens.weight"]
    assert_same_weights(load(editor.save())[0], editor.folder)


def test_rope_parameters(editor):
    theta = editor.config.pop("rope_theta")
    editor.config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    assert_same_weights(load(editor.save())[0], editor.folder)


def test_mxfp4(editor):
    """mxfp4 weights are repacked for the CPU."""

    def requantize(path: str) -> None:
        parts = [editor.weights.pop(f"{path}.{part}") for part in ("weight", "scales", "biases")]
        weight = mx.dequantize(*parts, group_size=64, bits=4)
        quantized = mx.quantize(weight, group_size=32, bits=4, mode="mxfp4")
        editor.weights[f"{path}.weight"], editor.weights[f"{path}.scales"] = quantized

    for name in [name for name in editor.weights if name.endswith(".biases")]:
        requantize(name.removesuffix(".biases"))
    editor.config["quantization"] = {"group_size": 32, "bits": 4, "mode": "mxfp4"}
    weights, _ = load_weights(editor.save())
    assert isinstance(weights, CheckpointModel)
    if kernels.computes_on_cpu():
        assert_close(logits(weights, 2), logits(weights, 1), "Week 2 compared with Week 1", ulps=8)
    mlx_model, _ = load(str(editor.folder))
    with pytest.raises(ValueError, match="quantized in mode 'affine', got mode 'mxfp4'"):
        Qwen3ModelWeek2(mlx_model)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors", "bitsandbytes"])
def test_other_libraries_quantization_is_rejected(editor, method):
    del editor.config["quantization"]
    editor.config["quantization_config"] = {"quant_method": method, "bits": 4}
    message = f"quantized by '{method}', which is not an MLX format; use .* `mlx_lm.convert -q`"
    for load_either in (load, load_weights):
        with pytest.raises(ModelError, match=message):
            load_either(editor.save())


def words(*shape: int) -> mx.array:
    return mx.zeros(shape, mx.uint32)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        (f"{PROJECTION}.weight", None, "is missing from the checkpoint; .* implies shape 256×16"),
        (f"{PROJECTION}.scales", None, "has shape 256×16, expected 256×128"),
        (f"{PROJECTION}.biases", None, "is missing from the checkpoint; .* implies shape 256×2"),
        (f"{PROJECTION}.weight", words(255, 16), "has shape 255×16, expected 256×16 for 4 bits"),
        (f"{PROJECTION}.weight", words(256, 17), "has shape 256×17, expected 256×16"),
        (f"{PROJECTION}.scales", mx.zeros((256,)), "has shape 256, expected 256×2"),
        (f"{PROJECTION}.biases", mx.zeros((256, 3)), "has shape 256×3, expected 256×2"),
        ("model.norm.weight", None, "is missing from the checkpoint; .* implies shape 128"),
        ("model.norm.weight", mx.zeros((127,)), "has shape 127, expected 128"),
        (f"{PROJECTION}.bias", mx.zeros((256,)), "is not a tensor of a qwen3"),
        ("model.layers.2.mlp.up_proj.weight", mx.zeros((256, 128)), "is not a tensor of a qwen3"),
    ],
)
def test_mismatched_tensor_is_named(editor, name, array, message):
    if array is None:
        del editor.weights[name]
    else:
        editor.weights[name] = array
    named = name.replace(".scales", ".weight") if "expected 256×128" in message else name
    with pytest.raises(ModelError, match=f"cannot be loaded: {named} {message}") as error:
        load_weights(editor.save())
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
    folder = tmp_path / "linked"
    folder.mkdir()
    for file in demo.TARGET_PATH.iterdir():
        (folder / file.name).symlink_to(file)
    weights, _ = load_weights(str(folder))
    assert weights.args.vocab_size == load_weights("demo")[0].args.vocab_size


def arrays_of(folder: Path) -> dict[str, mx.array]:
    return dict(tree_flatten(load_weights(str(folder))[0]))


def write_index(folder: Path, files: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def test_other_safetensors_files_are_not_read(editor, capsys):
    """Copies of the weights and sidecars, some of them in the index."""
    expected = arrays_of(Path(editor.save()))
    for name in ("consolidated.safetensors", "mtp.safetensors"):
        mx.save_safetensors(str(editor.folder / name), {**editor.weights, "mtp.a": mx.ones(1)})
    index = dict.fromkeys(editor.weights, "model.safetensors")
    write_index(editor.folder, {**index, "mtp.a": "mtp.safetensors", "b": "optiq/v.safetensors"})
    assert_same_arrays(arrays_of(editor.folder), expected)
    assert capsys.readouterr().err == ""


def test_complete_file_is_preferred_to_a_stale_index(editor, capsys):
    expected = arrays_of(Path(editor.save()))
    shard = "model-00001-of-00001.safetensors"
    write_index(editor.folder, dict.fromkeys(editor.weights, shard))
    for _ in range(2):
        assert_same_arrays(arrays_of(editor.folder), expected)
        [line] = capsys.readouterr().err.splitlines()
        assert "read model.safetensors only; model.safetensors.index.json lists other" in line
        shutil.copy(editor.folder / "model.safetensors", editor.folder / shard)
    (editor.folder / "model.safetensors").unlink()
    assert_same_arrays(arrays_of(editor.folder), expected)
    assert capsys.readouterr().err == ""


def test_missing_and_unexpected_tensors_are_named(editor):
    for name in [name for name in editor.weights if ".layers.1." in name]:
        editor.weights[name.replace("layers.1", "layers.7")] = editor.weights.pop(name)
    with pytest.raises(ModelError, match=r"and \d+ more are missing .*; .* \d+ more are not") as e:
        load_weights(editor.save())
    assert str(e.value).count("layers.1.") == str(e.value).count("layers.7.") == 5


def test_ignored_fields_are_listed_once(editor, capsys):
    editor.config |= {"mystery": 3, "other_thing": [1], "return_dict": True, "off": False}
    load_weights(editor.save())
    [line] = capsys.readouterr().err.splitlines()
    expected = ": ignored unknown fields of config.json: mystery, other_thing, return_dict."
    assert line.endswith(expected)
