"""`tiny-llm models`."""

import shutil

import mlx.core as mx
import numpy as np
import pytest

from tests.models.gguf.support import Type, write_tensors
from tests.models.support import FAMILIES
from tiny_llm import demo
from tiny_llm.cli import models
from tiny_llm.cli.models import main
from tiny_llm.models.checkpoint.dummy import random_tensors


@pytest.fixture
def lm_studio(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    root = tmp_path / ".lmstudio/models"
    (root / "me/random").mkdir(parents=True)
    tensors, _ = random_tensors(FAMILIES["qwen3"])
    state = {name: np.array(array.astype(mx.float32)) for name, array in tensors.items()}
    file = root / "me/random/model-Q8_0.gguf"
    write_tensors(file, FAMILIES["qwen3"], state, kind=Type.Q8_0)
    (root / "me/random/other.gguf").write_bytes(b"GGUF")
    shutil.copytree(demo.TARGET_PATH, root / "me/demo")
    return root


def test_table(lm_studio, capsys):
    assert main([]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "lmstudio:" in line]
    (random,) = [row for row in rows if "Q8_0" in row]
    assert [cell.strip() for cell in random.split("│")[3:-1]] == ["GGUF Q8_0", "qwen3", "yes"]
    assert any("MLX 4-bit" in row and "me/demo" in row for row in rows)
    assert any("unsupported: " in row and "is not a valid GGUF file" in row for row in rows)


def test_names(lm_studio, capsys):
    assert main(["--names"]) == 0
    names = capsys.readouterr().out.split("\n")
    assert {"demo", "lmstudio:me/demo", "lmstudio:me/random/model-Q8_0.gguf"} <= set(names)


def test_too_large_models_are_marked(lm_studio, capsys, monkeypatch):
    monkeypatch.setattr(models, "total_memory", lambda: 1000)
    assert main([]) == 0
    assert "no: needs" in capsys.readouterr().out
