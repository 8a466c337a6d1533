"""Models of LM Studio and Ollama, in folders laid out as these programs do."""

import json
from pathlib import Path

import pytest

from tiny_llm.models import ModelError
from tiny_llm.models.hub import find_config, find_local_model, is_model_file, local_models

DIGEST = "sha256:" + "ab" * 32


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("OLLAMA_MODELS", raising=False)
    for name in ("meta/Llama-GGUF/a-Q4_0.gguf", "meta/Llama-GGUF/a-Q8_0.gguf", "qwen/Qwen3/b.gguf"):
        write(tmp_path / ".lmstudio/models" / name)
    write(tmp_path / ".lmstudio/models/meta/Llama-GGUF/mmproj-a.gguf")
    write(tmp_path / ".cache/lm-studio/models/mlx-community/Qwen3-MLX/config.json")
    add_ollama_model(tmp_path / ".ollama/models", "registry.ollama.ai/library/llama3.2/latest")
    add_ollama_model(tmp_path / ".ollama/models", "registry.ollama.ai/library/llama3.2/1b")
    add_ollama_model(tmp_path / ".ollama/models", "registry.ollama.ai/me/mine/v1")
    add_ollama_model(tmp_path / ".ollama/models", "hf.co/org/Repo-GGUF/Q4_0")
    return tmp_path


def write(file: Path, text: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def add_ollama_model(root: Path, name: str, digest: str = DIGEST) -> None:
    weights = {"mediaType": "application/vnd.ollama.image.model", "digest": digest}
    template = {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:0"}
    write(root / "manifests" / name, json.dumps({"layers": [template, weights]}))
    write(root / "blobs" / DIGEST.replace(":", "-"))


BLOB = f".ollama/models/blobs/{DIGEST.replace(':', '-')}"
FOUND = {
    "ollama:hf.co/org/Repo-GGUF:Q4_0": BLOB,
    "ollama:llama3.2:1b": BLOB,
    "ollama:llama3.2:latest": BLOB,
    "ollama:me/mine:v1": BLOB,
    "lmstudio:meta/Llama-GGUF/a-Q4_0.gguf": ".lmstudio/models/meta/Llama-GGUF/a-Q4_0.gguf",
    "lmstudio:meta/Llama-GGUF/a-Q8_0.gguf": ".lmstudio/models/meta/Llama-GGUF/a-Q8_0.gguf",
    "lmstudio:qwen/Qwen3/b.gguf": ".lmstudio/models/qwen/Qwen3/b.gguf",
    "lmstudio:mlx-community/Qwen3-MLX": ".cache/lm-studio/models/mlx-community/Qwen3-MLX",
}
SHORT = {
    "ollama:llama3.2": BLOB,
    "lmstudio:qwen/Qwen3": ".lmstudio/models/qwen/Qwen3/b.gguf",
    "lmstudio:qwen3": ".lmstudio/models/qwen/Qwen3/b.gguf",
    "lmstudio:a-Q8_0.gguf": ".lmstudio/models/meta/Llama-GGUF/a-Q8_0.gguf",
    "lmstudio:Qwen3-MLX": ".cache/lm-studio/models/mlx-community/Qwen3-MLX",
}


def test_names(home):
    assert [name for name, _ in local_models()] == list(FOUND)
    for name, file in {**FOUND, **SHORT}.items():
        assert find_config(name, None) == home / file, name
    for other in ("demo", "C:/models"):
        assert find_local_model(other) is None


def test_ollama_models_variable(home, monkeypatch):
    monkeypatch.setenv("OLLAMA_MODELS", str(home / "elsewhere"))
    add_ollama_model(home / "elsewhere", "registry.ollama.ai/library/other/latest")
    assert find_local_model("ollama:other").is_relative_to(home / "elsewhere")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lmstudio:Llama-GGUF", "no single model is named .*: it is one of meta/Llama-GGUF/a-Q4_0"),
        ("lmstudio:gpt", "no single model is named 'lmstudio:gpt': lmstudio has meta/Llama-GGUF"),
        ("ollama:mine", "ollama has hf.co|ollama has"),
    ],
)
def test_unknown_and_ambiguous_names(home, name, message):
    with pytest.raises(ModelError, match=message):
        find_config(name, None)


@pytest.mark.parametrize("digest", ["sha256:../../x", "sha256:" + "cd" * 32, ""])
def test_manifests_refer_only_to_blobs(home, digest):
    add_ollama_model(home / ".ollama/models", "registry.ollama.ai/library/bad/latest", digest)
    with pytest.raises(ModelError, match="refers to no file with weights"):
        find_config("ollama:bad", None)


def test_first_file_of_a_split_is_the_model():
    names = ("m.gguf", "m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m.bin", "mmproj-m.gguf")
    assert [is_model_file(Path(name)) for name in names] == [True, True, False, False, False]
