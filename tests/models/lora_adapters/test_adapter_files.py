"""Unusable adapter folders: one-sentence errors before any large allocation."""

import json
import struct

import mlx.core as mx
import pytest

from tests.models.lora_adapters.support import random_adapter, write_adapter, write_peft_adapter
from tests.models.support import FAMILIES, MIXTURE
from tiny_llm.models import ModelError
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.lora_adapters import read_adapter

CONFIG = FAMILIES["qwen3"]
LAYER = "model.layers.1.self_attn.q_proj"  # a 128×128 weight
LORA = {"rank": 4, "scale": 2.0, "dropout": 0.0}


def read(folder, config=CONFIG, dtype=mx.bfloat16):
    return read_adapter(str(folder), read_config(config), dtype)


def error_of(folder, config=CONFIG, dtype=mx.bfloat16) -> str:
    with pytest.raises(ModelError) as caught:
        read(folder, config, dtype)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def lora_pair(layer: str = LAYER, rank: int = 4, I: int = 128, O: int = 128) -> dict[str, mx.array]:
    return {f"{layer}.lora_a": mx.ones((I, rank)), f"{layer}.lora_b": mx.ones((rank, O))}


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_scale_and_layout(tmp_path, dtype):
    tensors = {name: array.astype(dtype) for name, array in lora_pair().items()}
    [(path, matrices)] = read(write_adapter(tmp_path, tensors, 4, scale=3.0)).items()
    assert path == LAYER
    assert matrices.a.shape == (4, 128)
    assert matrices.b.dtype == mx.bfloat16
    assert matrices.b[0, 0].item() == 3.0


@pytest.mark.parametrize("prefix", ["model.visual.", "visual.", "vision_tower."])
def test_vision_tensors_are_skipped_with_one_line(tmp_path, capsys, prefix):
    vision = lora_pair(f"{prefix}blocks.0.attn.qkv", I=40, O=120)
    text = lora_pair(LAYER.replace("model.", "model.language_model.", 1))
    assert list(read(write_peft_adapter(tmp_path, {**text, **vision}, 4, 8))) == [LAYER]
    [line] = capsys.readouterr().err.splitlines()
    assert line.endswith(": skipped 2 tensors of the vision tower.")


@pytest.mark.parametrize("num_layers", [-1, 0, 1, 2, 16])
def test_num_layers_counts_from_the_end(tmp_path, num_layers):
    last = CONFIG["num_hidden_layers"] if num_layers < 1 else num_layers
    tensors = random_adapter(CONFIG, 2, last=last)
    assert read(write_adapter(tmp_path, tensors, 2, num_layers=num_layers))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fine_tune_type": "dora"}, "has fine_tune_type 'dora', expected 'lora'"),
        ({"fine_tune_type": "full"}, "has fine_tune_type 'full', expected 'lora'"),
        ({"lora_parameters": None}, "has lora_parameters None, expected an object"),
        *(
            ({"lora_parameters": {**LORA, **changes}}, message)
            for changes, message in (
                ({"alpha": 8}, "has unknown field 'alpha' in lora_parameters, expected rank, "),
                ({"rank": 0}, "has rank 0, expected a positive integer"),
                ({"rank": 4.0}, "has rank 4.0, expected a positive integer"),
                ({"rank": 10**12}, "rank 1000000000000, expected at most the model's"),
                ({"scale": "2"}, "has scale '2', expected a number"),
                ({"scale": 1e300}, "has scale 1e+300, expected a number"),
                ({"scale": float("nan")}, "has scale nan, expected a number"),
                ({"keys": "q"}, "has keys 'q', expected a list of strings"),
                ({"keys": ["mlp.up_proj"]}, "num_layers and keys in its config"),
            )
        ),
        ({"num_layers": None}, "has num_layers None, expected an integer"),
        ({"peft_type": "IA3"}, "has peft_type 'IA3', expected 'LORA'"),
    ],
)
def test_invalid_configs_are_rejected(tmp_path, changes, message):
    assert message in error_of(write_adapter(tmp_path, lora_pair(), 4, **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "has use_dora True, which is not supported"),
        ({"modules_to_save": ["lm_head"]}, "has modules_to_save ['lm_head'], which is not"),
        ({"rank_pattern": {"q_proj": 8}}, "has rank_pattern {'q_proj': 8}, which is not"),
        ({"bias": "all"}, "has bias 'all', expected 'none'"),
        ({"lora_alpha": None}, "has lora_alpha None, expected a number"),
        ({"r": -1}, "has r -1, expected a positive integer"),
        ({"r": 5}, "has shape 4×128, expected 5×128"),
        ({"r": 129}, "has r 129, expected at most the model's hidden_size, 128"),
        *(
            ({"init_lora_weights": init}, f"has init_lora_weights '{init}', which changes the base")
            for init in ("pissa", "pissa_niter_16", "olora", "corda", "loftq", "lora_ga")
        ),
    ],
)
def test_unsupported_peft_configs_are_rejected(tmp_path, changes, message):
    assert message in error_of(write_peft_adapter(tmp_path, lora_pair(), 4, 8, **changes))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "it has no tensors"),
        *(
            (lora_pair(f"model.layers.{layer}"), "does not match any layer of this qwen3 model")
            for layer in ("2.self_attn.q_proj", "01.self_attn.q_proj", "1.self_attn.x_proj")
        ),
        (lora_pair(rank=3), f"'{LAYER}.lora_a' has shape 128×3, expected 128×4"),
        (lora_pair(I=127), "has shape 127×4, expected 128×4"),
        (lora_pair(O=1), "has shape 4×1, expected 4×128"),
        (lora_pair("model.embed_tokens", I=211), "adapts the embedding, which is not supported"),
        (lora_pair("lm_head", O=211), "adapts the LM head, which is not supported"),
        ({**lora_pair(), f"{LAYER}.m": mx.ones(128)}, f"'{LAYER}.m' is not a tensor of a LoRA ad"),
        ({f"{LAYER}.weight": mx.ones((128, 128))}, "is not a tensor of a LoRA adapter"),
        ({f"{LAYER}.lora_a": mx.ones((128, 4))}, "has only one of lora_a and lora_b"),
        ({**lora_pair(), f"{LAYER}.lora_a": mx.full((128, 4), mx.nan)}, "are NaN, infinite or"),
        ({**lora_pair(), f"{LAYER}.lora_b": mx.full((4, 128), mx.inf)}, "are NaN, infinite or"),
        ({name: x.astype(mx.int32) for name, x in lora_pair().items()}, "has dtype I32"),
        ({name: x.reshape(-1) for name, x in lora_pair().items()}, "has shape 512, expected 128×4"),
        ({**lora_pair(), **lora_pair(f"language_model.{LAYER}")}, "duplicates "),
    ],
)
def test_invalid_tensors_are_rejected(tmp_path, tensors, message):
    assert message in error_of(write_adapter(tmp_path, tensors, 4, lora_parameters=LORA))


def test_adapters_of_experts_are_rejected(tmp_path):
    path = "model.layers.0.mlp.switch_mlp.up_proj"
    expert = {f"{path}.lora_a": mx.ones((6, 4, 128)), f"{path}.lora_b": mx.ones((6, 64, 4))}
    message = error_of(write_adapter(tmp_path, expert, 4, lora_parameters=LORA), MIXTURE)
    assert "adapts experts, which is not supported; exclude them from keys" in message


def test_values_too_large_for_the_dtype_are_rejected(tmp_path):
    tensors = {**lora_pair(), f"{LAYER}.lora_b": mx.full((4, 128), 6e4)}
    folder = write_adapter(tmp_path, tensors, 4, 2.0)
    assert "are NaN, infinite or too large" in error_of(folder, dtype=mx.float16)
    assert read(folder, dtype=mx.bfloat16)


def test_invalid_files_are_rejected(tmp_path):
    assert "is not a folder" in error_of(tmp_path / "none")
    assert "is not a folder" in error_of("owner/name")
    assert "has no adapter_config.json" in error_of(tmp_path)
    folder = write_adapter(tmp_path / "a", lora_pair(), 4)
    tensors = folder / "adapters.safetensors"
    content = tensors.read_bytes()
    tensors.unlink()
    assert "adapters.safetensors is missing or cannot be opened" in error_of(folder)
    huge = struct.pack("<Q", 2**62) + content[8:]
    for broken in (b"", content[:7], content[:-1], content + b"x", huge):
        tensors.write_bytes(broken)
        assert "adapters.safetensors is " in error_of(folder)


def test_memory_limit_includes_the_model(tmp_path, monkeypatch):
    folder = write_adapter(tmp_path, lora_pair(), 4)
    monkeypatch.setattr("tiny_llm.models.lora_adapters.total_memory", lambda: 5000)
    monkeypatch.setattr(mx, "get_active_memory", lambda: 1000)
    expected = "bytes of memory in addition to 1,000 in use, but this machine has 5,000."
    assert expected in error_of(folder)


def test_header_larger_than_the_file(tmp_path):
    folder = write_adapter(tmp_path, lora_pair(), 4)
    size = 2**40
    entry = {"dtype": "F32", "shape": [128, size // 512], "data_offsets": [0, size]}
    header = json.dumps({f"{LAYER}.lora_a": entry}).encode()
    (folder / "adapters.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert "its header implies" in error_of(folder)


def test_bit_flips_are_rejected_or_loaded(tmp_path):
    """Bit flips raise no exception other than `ModelError`."""
    folder = write_adapter(tmp_path, lora_pair(), 4)
    files = [folder / "adapters.safetensors", folder / "adapter_config.json"]
    contents = [file.read_bytes() for file in files]
    num_refused = 0
    for seed in range(150):
        file, content = files[seed % 2], bytearray(contents[seed % 2])
        place = seed * 7919 % min(len(content), 400)
        content[place] ^= 1 << seed % 8
        file.write_bytes(bytes(content))
        try:
            read(folder)
        except ModelError:
            num_refused += 1
        file.write_bytes(contents[seed % 2])
    assert num_refused > 50
