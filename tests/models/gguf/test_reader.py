"""GGUF headers: valid files, and errors for damaged and foreign ones."""

import contextlib
import struct

import gguf
import numpy as np
import pytest

from tests.models.gguf.support import write_file
from tiny_llm.models import ModelError
from tiny_llm.models.gguf.reader import open_gguf


@pytest.fixture
def file(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("numbers", [1, 2, 3])
    writer.add_array("words", ["a", "é", ""])
    writer.add_tensor("rows", np.arange(12, dtype=np.float32).reshape(3, 4))
    writer.add_tensor("more", np.arange(5, dtype=np.float16))
    write_file(writer)
    return tmp_path / "model.gguf"


def test_header_equals_the_reference(file):
    ours, reference = open_gguf(file), gguf.GGUFReader(file)
    assert ours.get("block_count") == 3
    assert ours.get("missing", 7) == 7
    assert ours.metadata["numbers"] == [1, 2, 3]
    assert ours.strings("words") == ["a", "é", ""]
    assert ours.strings("none") == []
    with pytest.raises(ValueError, match="its numbers is not a list of strings"):
        ours.strings("numbers")
    for tensor in reference.tensors:
        found = ours.tensors[tensor.name]
        assert found.offset == tensor.data_offset
        assert found.nbytes == tensor.n_bytes
        assert found.shape == tuple(tensor.data.shape)


def test_every_truncation_is_an_error(file):
    data = file.read_bytes()
    end = open_gguf(file).tensors["more"]
    for size in range(end.offset + end.nbytes):
        file.write_bytes(data[:size])
        with pytest.raises(ModelError, match=r"\.$"):
            open_gguf(file)


def test_random_damage_is_an_error_or_harmless(file):
    data, rng = bytearray(file.read_bytes()), np.random.default_rng(0)
    for position in range(4, open_gguf(file).tensors["rows"].offset):
        damaged = data.copy()
        damaged[position] = rng.integers(256)
        file.write_bytes(damaged)
        with contextlib.suppress(ModelError):
            open_gguf(file)


@pytest.mark.parametrize(
    ("position", "layout", "value", "message"),
    [
        (0, "<I", 1, "is not a GGUF file; pass a .gguf file or a model folder"),
        (4, "<I", 4, "has GGUF version 4; tiny-llm reads versions 2 and 3"),
        (8, "<Q", 2**60, "its header is truncated"),
        (16, "<Q", 2**60, "its header is truncated"),
        (24, "<Q", 2**60, "its header is truncated"),
    ],
)
def test_invalid_headers(file, position, layout, value, message):
    data = bytearray(file.read_bytes())
    struct.pack_into(layout, data, position, value)
    file.write_bytes(data)
    with pytest.raises(ModelError, match=message):
        open_gguf(file)


def test_unsupported_types_are_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    kind = gguf.GGMLQuantizationType.IQ4_XS
    writer.add_tensor("rows", np.zeros((2, 136), np.uint8), raw_dtype=kind)
    write_file(writer)
    with pytest.raises(ModelError, match="'rows' in type IQ4_XS, .*Q4_0, .*, such as Q4_K_M"):
        open_gguf(tmp_path / "model.gguf")


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ModelError, match="cannot be read: No such file or directory"):
        open_gguf(tmp_path / "missing.gguf")
    with pytest.raises(ModelError, match=r"cannot be read|not a regular file"):
        open_gguf(tmp_path)
