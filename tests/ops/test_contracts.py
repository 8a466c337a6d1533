"""Docstrings of the extension, generated from the operations' headers."""

import importlib.util
import os
from types import ModuleType

import mlx.core as mx
import pytest

from tests.ops.test_fuzz import NAMES
from tiny_llm import kernels


@pytest.mark.parametrize("name", NAMES)
def test_help_shows_the_header_contract(name):
    contract = getattr(kernels.extension(), name).__doc__
    for part in ("Raises ValueError", "stream: stream or device", "More: src/extensions/src/"):
        assert part in contract, f"{name}'s docstring lacks {part!r}"
    assert "std::" not in contract
    assert f"`help(tiny_llm_ext.{name})`" in getattr(kernels, name).__doc__


@pytest.fixture
def kernels_of_a_mac(monkeypatch, tmp_path) -> ModuleType:
    """`tiny_llm.kernels`, reimported as if Metal and the extension existed."""
    (tmp_path / "_ext.cpython-313-darwin.so").touch()
    found = importlib.util.spec_from_loader("tiny_llm_ext", None, is_package=True)
    found.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    spec = importlib.util.spec_from_file_location("tiny_llm.kernels", kernels.__file__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_operations_follow_the_mlx_device_on_a_mac(kernels_of_a_mac):
    assert kernels_of_a_mac._stream is None
    assert kernels_of_a_mac.runs_on_default_device()


def test_operations_run_on_the_cpu_without_metal(monkeypatch):
    if mx.metal.is_available() or os.environ.get("TINY_LLM_EMULATED_METAL") == "1":
        pytest.skip("needs a machine without Metal")
    assert kernels._stream == mx.cpu
    zeros = mx.zeros((4,))
    with monkeypatch.context() as patch:
        streams = []
        patch.setattr(kernels.extension(), "axpby", lambda *_, stream: streams.append(stream))
        kernels.axpby(zeros, zeros, 1.0, 1.0)
        kernels.axpby(zeros, zeros, 1.0, 1.0, stream=mx.gpu)
    assert streams == [mx.cpu, mx.gpu]
