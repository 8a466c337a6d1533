"""Corruptions of a checkpoint: functions that modify its folder.

Each is applied to a copy of a small valid checkpoint; `checkpoint_cases.py` lists the cases.
"""

import json
import math
import os
import shutil
import struct
from collections.abc import Callable
from functools import partial
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


def corruption(function: Callable[..., None]) -> Callable[..., Corruption]:
    """Decorates a function of a folder and more arguments; the result takes the latter first."""
    return lambda *args, **options: lambda folder: function(folder, *args, **options)


@corruption
def combine(folder: Path, *corruptions: Corruption) -> None:
    for corrupt in corruptions:
        corrupt(folder)


@corruption
def without(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).unlink()


@corruption
def file(folder: Path, name: str, content: str | bytes) -> None:
    (folder / name).unlink(missing_ok=True)  # since it may be a link or read-only
    (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


@corruption
def link(folder: Path, name: str, target: str | Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)


@corruption
def directory(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()


def change_json(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


def without_ellipses(fields: Header) -> Header:
    return {key: value for key, value in fields.items() if value is not ...}


@corruption
def fields(folder: Path, name: str, **new: Any) -> None:
    """Sets fields of a JSON file; the value `...` removes a field."""
    change_json(folder / name, lambda content: without_ellipses(content | new))


config, tokenizer, settings = (partial(fields, name) for name in (CONFIG, TOKENIZER, SETTINGS))


@corruption
def quantization(folder: Path, **new: Any) -> None:
    change_json(
        folder / CONFIG, lambda content: content | {"quantization": content["quantization"] | new}
    )


@corruption
def index(folder: Path, weight_map: Any) -> None:
    """Writes a shard index; a `weight_map` function receives the correct map."""
    right = dict.fromkeys(read_header(folder / WEIGHTS)[0], WEIGHTS)
    chosen = weight_map(right) if callable(weight_map) else weight_map
    (folder / INDEX).write_text(json.dumps({"weight_map": chosen}))


def renamed(name: str) -> Corruption:
    """Renames the weights in the index only; the file is removed."""
    return combine(index(lambda right: dict.fromkeys(right, name)), without(WEIGHTS))


@corruption
def moved(folder: Path, name: str) -> None:
    """Moves the weights to a path relative to the folder, which the index contains."""
    (folder / "model").mkdir()
    (folder / name).write_bytes((folder / WEIGHTS).read_bytes())
    renamed(name)(folder)


def read_header(path: Path) -> tuple[Header, bytes]:
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    return header, content[8 + size :]


def write_header(folder: Path, header: bytes, data: bytes) -> None:
    file(WEIGHTS, struct.pack("<Q", len(header)) + header + data)(folder)


@corruption
def header(folder: Path, change: Callable[[Header], Any]) -> None:
    """Replaces the header with the result of a function: text or an object."""
    actual, data = read_header(folder / WEIGHTS)
    changed = change(actual)
    text = changed if isinstance(changed, str) else json.dumps(changed)
    write_header(folder, text.encode(), data)


def entry(name: str, **new: Any) -> Corruption:
    """Sets fields of a tensor's header entry; the value `...` removes a field."""
    return header(lambda current: current | {name: without_ellipses(current[name] | new)})


def header_text(text: str) -> Corruption:
    return header(lambda _: text)


@corruption
def cut_to(folder: Path, size: int) -> None:
    """Truncates the weights file; a negative size counts from the end."""
    file(WEIGHTS, (folder / WEIGHTS).read_bytes()[:size])(folder)


@corruption
def tensors(folder: Path, **new: Any) -> None:
    """Sets tensors to an array or a function of the old one; None removes them."""
    actual: Any = dict(mx.load(str(folder / WEIGHTS)))  # type: ignore[arg-type]
    mx.eval(actual)
    for name, value in new.items():
        actual[name] = value(actual[name]) if callable(value) else value
    (folder / WEIGHTS).unlink()
    kept = {name: value for name, value in actual.items() if value is not None}
    mx.save_safetensors(str(folder / WEIGHTS), kept)


def plain(folder: Path) -> None:
    """Replaces the quantized checkpoint with an unquantized one."""
    for path in folder.iterdir():
        path.unlink()
    make_valid_checkpoint(folder, bits=None)


@corruption
def sparse_weights(folder: Path, num_bytes: int) -> None:
    """Grows the unquantized model to `num_bytes`, as a sparse file."""
    plain(folder)
    actual, data = read_header(folder / WEIGHTS)
    rows = (num_bytes - len(data)) // (64 * 2)
    actual["model.embed_tokens.weight"]["shape"] = [rows, 64]
    end = 0
    for tensor in actual.values():
        begin, end = end, end + 2 * math.prod(tensor["shape"])
        tensor["data_offsets"] = [begin, end]
    write_header(folder, json.dumps(actual).encode(), b"")
    with (folder / WEIGHTS).open("r+b") as stream:
        stream.truncate(stream.seek(0, os.SEEK_END) + end)
    config(vocab_size=rows)(folder)
