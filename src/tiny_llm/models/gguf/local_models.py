"""Models of other programs on this machine: `ollama:NAME` and `lmstudio:NAME`.

Their files are read in place and never written.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from ...errors import short_repr, summarize
from ..checkpoint.safe_io import ModelError, read_json

OLLAMA_REGISTRY, OLLAMA_LIBRARY = "registry.ollama.ai/", "library/"  # omitted in names
OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"  # media type of a manifest's layer
LM_STUDIO_FOLDERS = ("~/.lmstudio/models", "~/.cache/lm-studio/models")


def local_models() -> Iterator[tuple[str, Callable[[], Path]]]:
    """Yields (name with prefix, function that returns the file or folder, or raises ModelError)."""
    for prefix, models in _SOURCES.items():
        for name, find in models().items():
            yield f"{prefix}:{name}", find


def find_local_model(name: str) -> Path | None:
    """File or folder of a model named with a prefix; None without a prefix.

    Raises:
        ModelError: the program has no such model, or several, or its files are invalid.
    """
    prefix, _, wanted = name.partition(":")
    if prefix not in _SOURCES:
        return None
    models = _SOURCES[prefix]()
    parts = f"/{wanted}/".casefold()
    found = [each for each in models if parts in f"/{each}/".casefold()]
    for exact in (wanted, f"{wanted}:latest"):
        found = [exact] if exact in models else found
    if len(found) != 1:
        problem = (
            f"it is one of {summarize(found)}"
            if found
            else f"{prefix} has {summarize(list(models))}"
        )
        raise ModelError(f"no single model is named {short_repr(name)}: {problem}.")
    return models[found[0]]()


def _ollama_models() -> Mapping[str, Callable[[], Path]]:
    root = Path(os.environ.get("OLLAMA_MODELS") or "~/.ollama/models").expanduser()
    models = {}
    for manifest in sorted((root / "manifests").glob("*/*/*/*")):
        repository = manifest.parent.relative_to(root / "manifests").as_posix()
        name = repository.removeprefix(OLLAMA_REGISTRY).removeprefix(OLLAMA_LIBRARY)
        models[f"{name}:{manifest.name}"] = partial(_ollama_blob, root, manifest)
    return models


def _ollama_blob(root: Path, manifest: Path) -> Path:
    layers = read_json(manifest.parent, manifest.name).get("layers")
    for layer in layers if isinstance(layers, list) else ():
        if isinstance(layer, dict) and layer.get("mediaType") == OLLAMA_WEIGHTS:
            digest = str(layer.get("digest")).replace(":", "-")
            if re.fullmatch(r"sha256-[0-9a-f]{64}", digest) and (root / "blobs" / digest).is_file():
                return root / "blobs" / digest
    raise ModelError(f"{manifest} refers to no file with weights; run `ollama pull` again.")


def _lm_studio_models() -> Mapping[str, Callable[[], Path]]:
    models = {}
    for root in (Path(folder).expanduser() for folder in LM_STUDIO_FOLDERS):
        for file in sorted(root.glob("*/*/*")):
            if file.name == "config.json":
                file = file.parent
            elif not is_model_file(file):
                continue
            models[file.relative_to(root).as_posix()] = partial(Path, file)
    return models


def is_model_file(file: Path) -> bool:
    """Whether a file is a GGUF model: not a vision projector, nor a later part of a split."""
    is_later_part = re.search(r"-\d{5}-of-\d{5}$", file.stem) and "-00001-of-" not in file.stem
    return file.suffix == ".gguf" and not file.name.startswith("mmproj") and not is_later_part


_SOURCES: Mapping[str, Callable[[], Mapping[str, Callable[[], Path]]]] = {
    "ollama": _ollama_models,
    "lmstudio": _lm_studio_models,
}
