"""Sizes from config and file headers equal those of the loaded model."""

import json
import struct
import subprocess
import sys
from dataclasses import replace

import pytest
from mlx.utils import tree_flatten

from tests.models.support import FAMILIES, HYBRID, HYBRID_MIXTURE, MIXTURE, name_of, write_family
from tiny_llm import ModelError, load_weights
from tiny_llm.kv_storage.int8_rows import KV_CACHE_DTYPES
from tiny_llm.models.checkpoint.dummy import random_tensors
from tiny_llm.models.checkpoint.sharding import RankShard
from tiny_llm.models.checkpoint.tensor_shapes import MODES
from tiny_llm.models.families.registry import read_config
from tiny_llm.models.loading import serving_model
from tiny_llm.models.memory import model_size

QUANTIZATIONS = [
    None,
    *(
        {"mode": mode, "bits": bits, "group_size": groups[0]}
        for mode, (all_bits, groups) in MODES.items()
        for bits in all_bits
    ),
]
CONFIGS = [*FAMILIES.values(), MIXTURE, HYBRID, HYBRID_MIXTURE]
UNTIED = {**FAMILIES["qwen3"], "tie_word_embeddings": False}


def write(folder, config, quantization=None):
    return write_family(folder, {"torch_dtype": "bfloat16", **config, "quantization": quantization})


def load(folder, rank=0, num_ranks=1):
    options = {"load_format": "dummy", "with_tokenizer": False}
    return load_weights(str(folder), rank=rank, num_ranks=num_ranks, **options)[0]


def nbytes(model):
    return sum(array.nbytes for _, array in tree_flatten(model))


# (config, its quantization, dtype of the KV cache)
CASES = [(config, None, dtype) for config in CONFIGS for dtype in KV_CACHE_DTYPES]
CASES += [(UNTIED, quantization, "auto") for quantization in QUANTIZATIONS]
CASES += [({**HYBRID, "torch_dtype": dtype}, None, "auto") for dtype in ("float16", "float32")]


@pytest.mark.parametrize(("config", "quantization", "kv_cache_dtype"), CASES)
def test_sizes_equal_those_of_the_loaded_model(tmp_path, config, quantization, kv_cache_dtype):
    """Weights are repacked, so they may be larger than the file."""
    folder = write(tmp_path / "model", config, quantization)
    mlx_model = load(folder)
    decoder = serving_model("model", mlx_model, 16, kv_cache_dtype=kv_cache_dtype)
    size = replace(model_size(folder), kv_cache_dtype=kv_cache_dtype)
    # Files of Gemma 3 have norms w, which loading converts to 1 + w in float32; dummy weights stay.
    if size.config.model_type == "gemma3_text":
        assert size.weight_bytes > nbytes(mlx_model)
        assert model_size(folder, load_format="dummy").weight_bytes == nbytes(mlx_model)
    else:
        assert size.weight_bytes == nbytes(mlx_model)
    for name in ("kv_bytes_per_token", "state_bytes", "max_seq_len", "dtype"):
        assert getattr(size, name) == getattr(decoder, name), name


def test_config_alone_gives_the_same_sizes(tmp_path):
    folder = write(tmp_path / "model", MIXTURE, {"bits": 4, "group_size": 64})
    expected = model_size(folder)
    (folder / "model.safetensors").unlink()
    assert model_size(folder) == expected


@pytest.mark.parametrize("config", [UNTIED, MIXTURE, HYBRID], ids=name_of)
def test_ranks_are_counted_together(tmp_path, config):
    folder = write(tmp_path / "model", config)
    size = model_size(folder, num_ranks=2)
    assert size.weight_bytes == sum(nbytes(load(folder, rank, 2)) for rank in range(2))
    part = RankShard(read_config(config), 0, 2).config
    assert size.kv_bytes_per_token == 2 * 2 * part.num_kv_layers * part.num_key_value_heads * 64
    assert size.state_bytes == model_size(folder).state_bytes


def test_errors_equal_those_of_loading(tmp_path):
    folder = write(tmp_path / "model", FAMILIES["qwen3"])
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 64}))
    with pytest.raises(ModelError, match=r"embed_tokens.weight has shape 211×128, expected 211×64"):
        model_size(folder)
    with pytest.raises(ModelError, match="cannot be divided evenly among 3 ranks"):
        model_size(folder, num_ranks=3)


def write_sparse(folder, config):
    """Writes a checkpoint with a sparse weights file, which needs no disk space."""
    header, end = {}, 0
    for name, array in random_tensors(config)[0].items():
        begin, end = end, end + array.nbytes
        header[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def test_no_weights_are_read(tmp_path):
    """The size of a 2 GB checkpoint is computed with a few megabytes of memory."""
    folder = tmp_path / "model"
    write_sparse(folder, {**UNTIED, "vocab_size": 2**22})
    program = (
        "import resource; from pathlib import Path\n"
        "from tiny_llm.models.memory import model_size\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"assert model_size(Path({str(folder)!r})).weight_bytes > 2e9\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    in_kilobytes = 1 if sys.platform == "darwin" else 1024
    assert int(output) * in_kilobytes < 5e7
