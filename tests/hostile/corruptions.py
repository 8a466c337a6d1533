"""Corruptions of a checkpoint: functions that modify its folder.

Each is applied to a copy of a small valid checkpoint; `checkpoint_cases.py` lists the cases.
"""

import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx

from benchmark.make_checkpoint import qwen3_config, write_checkpoint
from tiny_llm.demo import TARGET_PATH

Corruption = Callable[[Path], None]
Header = dict[str, Any]

CONFIG, TOKENIZER, SETTINGS = "config.json", "tokenizer.json", "tokenizer_config.json"
GENERATION = "generation_config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj"
NORM = "model.norm.weight"

# File that the checkpoint's code creates if it is executed.
MARKER = "ran.txt"
PROGRAM = f"from pathlib import Path\n(Path(__file__).parent / {MARKER!r}).write_text('ran')\n"


def make_valid_checkpoint(folder: Path, bits: int | None = 4) -> None:
    """Writes a small valid checkpoint of 2 layers, unquantized if `bits` is None."""
    config = qwen3_config(64, 2, 128, 2, 1, True, head_dim=32, vocab_size=4200)
    write_checkpoint(folder, config | {"max_position_embeddings": 512}, bits, 64)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TARGET_PATH / name, folder / name)
    (folder / "chat_template.jinja").unlink()  # tokenizer_config.json contains the template, too


def combine(*corruptions: Corruption) -> Corruption:
    def corrupt(folder: Path) -> None:
        for corruption in corruptions:
            corruption(folder)

    return corrupt


# ---------------------------------------------------------------- files


def without(*names: str) -> Corruption:
    def corrupt(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return corrupt


def file(name: str, content: str | bytes) -> Corruption:
    as_bytes = content.encode() if isinstance(content, str) else content
    return lambda folder: _put(folder / name, as_bytes)


# ---------------------------------------------------------------- JSON


def fields(name: str, **new: Any) -> Corruption:
    """Sets fields of a JSON file; the value `...` removes a field."""

    def corrupt(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        content |= new
        remaining = {key: value for key, value in content.items() if value is not ...}
        (folder / name).write_text(json.dumps(remaining))

    return corrupt


def config(**new: Any) -> Corruption:
    return fields("config.json", **new)


def quantization(**new: Any) -> Corruption:
    def corrupt(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        content["quantization"] |= new
        (folder / "config.json").write_text(json.dumps(content))

    return corrupt


def tokenizer(**new: Any) -> Corruption:
    return fields("tokenizer.json", **new)


def settings(**new: Any) -> Corruption:
    return fields("tokenizer_config.json", **new)


def index(weight_map: Any = None, **more: Any) -> Corruption:
    """Writes a shard index; a `weight_map` function receives the correct map."""

    def corrupt(folder: Path) -> None:
        right = dict.fromkeys(read_header(folder / WEIGHTS)[0], WEIGHTS)
        chosen = weight_map(right) if callable(weight_map) else weight_map
        (folder / INDEX).write_text(json.dumps({"weight_map": chosen, **more}))

    return corrupt


def renamed(name: str) -> Corruption:
    """Renames the weights in the index only; the file is removed."""
    return combine(index(lambda right: dict.fromkeys(right, name)), without(WEIGHTS))


def moved(name: str) -> Corruption:
    """Moves the weights to a path relative to the folder, which the index contains."""

    def corrupt(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / name).write_bytes((folder / WEIGHTS).read_bytes())

    return combine(corrupt, renamed(name))


# ---------------------------------------------------------------- safetensors


def read_header(path: Path) -> tuple[Header, bytes]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    return header, content[8 + size :]


def write_header(path: Path, header: bytes, data: bytes) -> None:
    _put(path, struct.pack("<Q", len(header)) + header + data)


def header(change: Callable[[Header], Any]) -> Corruption:
    """Changes the header with a function that modifies it or returns a new one."""

    def corrupt(folder: Path) -> None:
        actual, data = read_header(folder / WEIGHTS)
        changed = change(actual)
        text = changed if isinstance(changed, str) else json.dumps(changed or actual)
        write_header(folder / WEIGHTS, text.encode(), data)

    return corrupt


def cut_to(size: int) -> Corruption:
    """Truncates the weights file; a negative size counts from the end."""

    def corrupt(folder: Path) -> None:
        _put(folder / WEIGHTS, (folder / WEIGHTS).read_bytes()[:size])

    return corrupt


def tensors(**new: Any) -> Corruption:
    """Sets tensors to an array or a function of the old one; None removes them."""

    def corrupt(folder: Path) -> None:
        actual: Any = dict(mx.load(str(folder / WEIGHTS)))  # type: ignore[arg-type]
        mx.eval(actual)
        for spelled, value in new.items():
            name = spelled.replace("/", ".")
            if value is None:
                del actual[name]
            else:
                actual[name] = value(actual[name]) if callable(value) else value
        (folder / WEIGHTS).unlink()
        mx.save_safetensors(str(folder / WEIGHTS), actual)

    return corrupt


def plain(folder: Path) -> None:
    """Replaces the quantized checkpoint with an unquantized one."""
    for path in folder.iterdir():
        path.unlink()
    make_valid_checkpoint(folder, bits=None)


def sparse_weights(num_bytes: int) -> Corruption:
    """Grows the unquantized model to `num_bytes`, as a sparse file."""

    def corrupt(folder: Path) -> None:
        plain(folder)
        actual, data = read_header(folder / WEIGHTS)
        rows = (num_bytes - len(data)) // (64 * 2)
        actual["model.embed_tokens.weight"]["shape"] = [rows, 64]
        end = 0
        for tensor in actual.values():
            begin, end = end, end + 2 * math.prod(tensor["shape"])
            tensor["data_offsets"] = [begin, end]
        write_header(folder / WEIGHTS, json.dumps(actual).encode(), b"")
        with (folder / WEIGHTS).open("r+b") as stream:
            stream.truncate(stream.seek(0, os.SEEK_END) + end)
        config(vocab_size=rows)(folder)

    return corrupt


def _put(path: Path, content: bytes) -> None:
    """Writes a new file, since the old one may be a link or read-only."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
