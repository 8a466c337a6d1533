"""Corruptions of a checkpoint, as changes of its files.

A corruption maps file names to changes: a text or bytes replace the file, None removes it, a
dictionary sets fields of JSON (the value `...` removes a field), and a function gets the path.
`checkpoint_cases.py` lists the cases.
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

Corruption = dict[str, Any]
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


def apply(corruption: Corruption, folder: Path) -> None:
    for name, change in corruption.items():
        path = folder / name
        if callable(change):
            change(path)
        elif isinstance(change, dict):
            path.write_text(json.dumps(with_fields(json.loads(path.read_text()), change)))
        else:
            path.unlink(missing_ok=True)  # since it may be a link or read-only
            if change is not None:
                path.write_bytes(change.encode() if isinstance(change, str) else change)


def with_fields(content: Header, new: Header) -> Header:
    return {key: value for key, value in (content | new).items() if value is not ...}


def config(**new: Any) -> Corruption:
    return {CONFIG: new}


def settings(**new: Any) -> Corruption:
    return {SETTINGS: new}


def quantization(**new: Any) -> Corruption:
    return config(quantization={"group_size": 64, "bits": 4, "mode": "affine"} | new)


def index(*names: str) -> Corruption:
    """Removes the weights and writes an index of tensors in files with these names."""
    weight_map = {f"t{number}": name for number, name in enumerate(names)}
    return {INDEX: json.dumps({"weight_map": weight_map}), WEIGHTS: None}


def link(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing")


def directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def moved(name: str) -> Corruption:
    """Moves the weights to a path relative to the folder, which the index contains."""

    def move(path: Path) -> None:
        (path.parent / "model").mkdir()
        shutil.copyfile(path, path.parent / name)

    return {WEIGHTS: move} | {f"./{name}": change for name, change in index(name).items()}


def read_header(path: Path) -> tuple[Header, bytes]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    return header, content[8 + size :]


def header(change: Callable[[Header], Any]) -> Corruption:
    """Replaces the weights' header with the result of a function."""

    def rewrite(path: Path) -> None:
        actual, data = read_header(path)
        text = json.dumps(change(actual)).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + data)

    return {WEIGHTS: rewrite}


def entry(name: str, **new: Any) -> Corruption:
    """Sets fields of a tensor's header entry; the value `...` removes a field."""
    return header(lambda current: current | {name: with_fields(current[name], new)})


def cut_to(size: int) -> Corruption:
    """Truncates the weights file; a negative size counts from the end."""
    return {WEIGHTS: lambda path: path.write_bytes(path.read_bytes()[:size])}


def tensors(**new: Any) -> Corruption:
    """Sets tensors to an array or a function of the old one; None removes them."""

    def rewrite(path: Path) -> None:
        actual: Any = dict(mx.load(str(path)))  # type: ignore[arg-type]
        mx.eval(actual)
        for name, value in new.items():
            actual[name] = value(actual[name]) if callable(value) else value
        path.unlink()
        kept = {name: value for name, value in actual.items() if value is not None}
        mx.save_safetensors(str(path), kept)

    return {WEIGHTS: rewrite}


def plain(path: Path) -> None:
    """Replaces the quantized checkpoint with an unquantized one."""
    for file in path.parent.iterdir():
        file.unlink()
    make_valid_checkpoint(path.parent, bits=None)


def plain_integers(path: Path) -> None:
    plain(path)
    apply(entry(NORM, dtype="U16"), path.parent)


def sparse_weights(num_bytes: int) -> Corruption:
    """Grows the unquantized model to `num_bytes`, as a sparse file."""

    def grow(path: Path) -> None:
        plain(path)
        actual, data = read_header(path)
        rows = (num_bytes - len(data)) // (64 * 2)
        actual["model.embed_tokens.weight"]["shape"] = [rows, 64]
        end = 0
        for tensor in actual.values():
            begin, end = end, end + 2 * math.prod(tensor["shape"])
            tensor["data_offsets"] = [begin, end]
        text = json.dumps(actual).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(path, 8 + len(text) + end)
        apply(config(vocab_size=rows), path.parent)

    return {WEIGHTS: grow}
