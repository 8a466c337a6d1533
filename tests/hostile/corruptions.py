"""What can be done to a checkpoint's folder, each as a function of the folder.

A small whole checkpoint is copied, and a *damage* changes the copy. `checkpoint_cases.py` has the
table.
"""

import json
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

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
UP = "model.layers.1.mlp.up_proj"
NORM = "model.norm.weight"

# What a program from the folder would leave there, if it ran.
MARKER = "ran.txt"
PROGRAM = f"from pathlib import Path\n(Path(__file__).parent / {MARKER!r}).write_text('ran')\n"


def make_valid_checkpoint(folder: Path, bits: int | None = 4) -> None:
    """A small checkpoint with nothing wrong: 2 layers, E = 64, of 4 bits in groups of 64."""
    config = qwen3_config(64, 2, 128, 2, 1, True, head_dim=32, vocab_size=4200)
    write_checkpoint(folder, config | {"max_position_embeddings": 512}, bits, 64)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(TARGET_PATH / name, folder / name)
    (folder / "chat_template.jinja").unlink()  # the settings have it too


def combine(*damages: Corruption) -> Corruption:
    """Several, one after the other."""

    def corrupt(folder: Path) -> None:
        for each in damages:
            each(folder)

    return corrupt


# ---------------------------------------------------------------- files


def without(*names: str) -> Corruption:
    """Files that are missing."""

    def corrupt(folder: Path) -> None:
        for name in names:
            (folder / name).unlink()

    return corrupt


def file(name: str, content: str | bytes) -> Corruption:
    """A file with other content."""
    as_bytes = content.encode() if isinstance(content, str) else content
    return lambda folder: _put(folder / name, as_bytes)


def link(name: str, target: str | Path) -> Corruption:
    """A link in the place of a file."""

    def corrupt(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return corrupt


def pipe(name: str) -> Corruption:
    """A named pipe, which nothing ever writes to: to open it is to wait."""

    def corrupt(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return corrupt


def directory(name: str) -> Corruption:
    """A folder in the place of a file."""

    def corrupt(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).mkdir()

    return corrupt


def huge(name: str, num_bytes: int, start: bytes = b"") -> Corruption:
    """A file with a hole: its size is large, and it takes no room on the disk."""

    def corrupt(folder: Path) -> None:
        _put(folder / name, start)
        with (folder / name).open("r+b") as stream:
            stream.truncate(num_bytes)

    return corrupt


# ---------------------------------------------------------------- JSON


def fields(name: str, **new: Any) -> Corruption:
    """Fields of a file in JSON; the value `...` removes one."""

    def corrupt(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        content |= new
        left = {key: value for key, value in content.items() if value is not ...}
        (folder / name).write_text(json.dumps(left))

    return corrupt


def config(**new: Any) -> Corruption:
    """Fields of config.json."""
    return fields("config.json", **new)


def quantization(**new: Any) -> Corruption:
    """Fields of what config.json says of the quantization."""

    def corrupt(folder: Path) -> None:
        content = json.loads((folder / "config.json").read_text())
        content["quantization"] |= new
        (folder / "config.json").write_text(json.dumps(content))

    return corrupt


def tokenizer(**new: Any) -> Corruption:
    """Fields of tokenizer.json."""
    return fields("tokenizer.json", **new)


def settings(**new: Any) -> Corruption:
    """Fields of tokenizer_config.json."""
    return fields("tokenizer_config.json", **new)


def split_on(regex: str) -> Corruption:
    """The regular expression at which tokenizer.json cuts a text into words."""

    def corrupt(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        content["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {"Regex": regex}
        (folder / "tokenizer.json").write_text(json.dumps(content))

    return corrupt


def index(weight_map: Any = None, **more: Any) -> Corruption:
    """An index; the right one, if `weight_map` is a function of that."""

    def corrupt(folder: Path) -> None:
        right = dict.fromkeys(read_header(folder / WEIGHTS)[0], WEIGHTS)
        chosen = weight_map(right) if callable(weight_map) else weight_map
        (folder / INDEX).write_text(json.dumps({"weight_map": chosen, **more}))

    return corrupt


def renamed(name: str) -> Corruption:
    """The index calls the weights' file otherwise."""
    return index(lambda right: dict.fromkeys(right, name))


# ---------------------------------------------------------------- safetensors


def read_header(path: Path) -> tuple[Header, bytes]:
    """The header of a safetensors file, and the bytes that follow it."""
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    return header, content[8 + size :]


def write_header(path: Path, header: bytes, data: bytes) -> None:
    """A safetensors file with any header."""
    _put(path, struct.pack("<Q", len(header)) + header + data)


def header(change: Callable[[Header], Any]) -> Corruption:
    """The header that a function changes, or returns."""

    def corrupt(folder: Path) -> None:
        found, data = read_header(folder / WEIGHTS)
        changed = change(found)
        text = changed if isinstance(changed, str) else json.dumps(changed or found)
        write_header(folder / WEIGHTS, text.encode(), data)

    return corrupt


def entry(name: str, **new: Any) -> Corruption:
    """Fields of a tensor's entry in the header; the value `...` removes one."""

    def change(found: Header) -> None:
        found[name] |= new
        for key in [key for key, value in found[name].items() if value is ...]:
            del found[name][key]

    return header(change)


def header_text(text: str) -> Corruption:
    """Any text as the header."""
    return header(lambda found: text)


def header_size(size: int) -> Corruption:
    """The length that the file gives for its header."""

    def corrupt(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        _put(folder / WEIGHTS, struct.pack("<Q", size) + content[8:])

    return corrupt


def cut_to(size: int) -> Corruption:
    """Weights that end early; from the end, if the size is below 0."""

    def corrupt(folder: Path) -> None:
        _put(folder / WEIGHTS, (folder / WEIGHTS).read_bytes()[:size])

    return corrupt


def tensors(**new: Any) -> Corruption:
    """Tensors by their names, with `/` for `.`: an array, a function of the old one, or None."""

    def corrupt(folder: Path) -> None:
        found: Any = dict(mx.load(str(folder / WEIGHTS)))  # type: ignore[arg-type]
        mx.eval(found)
        for spelled, value in new.items():
            name = spelled.replace("/", ".")
            if value is None:
                del found[name]
            else:
                found[name] = value(found[name]) if callable(value) else value
        (folder / WEIGHTS).unlink()
        mx.save_safetensors(str(folder / WEIGHTS), found)

    return corrupt


def with_number(name: str, number: float) -> Corruption:
    """One number of a tensor that is not what it was."""

    def change(array: mx.array) -> mx.array:
        array[(-1,) * array.ndim] = number
        return array

    return tensors(**{name: change})


def plain(folder: Path) -> None:
    """The same model, not quantized."""
    for path in folder.iterdir():
        path.unlink()
    make_valid_checkpoint(folder, bits=None)


def _put(path: Path, content: bytes) -> None:
    """Writes a new file: the old one may be a link, or something that cannot be written to."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)
