"""Resolves model names to local files; downloads from the Hugging Face hub.

A name is an alias (`qwen3-0.6b`), a hub id, a folder, a GGUF file, or a model of Ollama or LM
Studio (`ollama:NAME`, `lmstudio:NAME`), whose files are read in place and never written. Any
regular file is taken for a GGUF file; modules that need NumPy are imported for these only, to save
memory.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import demo
from ..errors import short_repr, summarize
from .checkpoint import layout, weights
from .checkpoint.safe_io import ModelError, model_errors, read_json
from .checkpoint.sharding import RankShard
from .families.registry import read_config
from .gguf.reader import open_gguf
from .gguf.tokenizer import gguf_tokenizer
from .tokenizer import loader

if TYPE_CHECKING:
    from rich.console import Console  # at run time, imported only when needed, to save memory

SHORT_NAMES = {
    "qwen3-0.6b": "Qwen/Qwen3-0.6B-MLX-4bit",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B-MLX-4bit",
    "qwen3-4b": "Qwen/Qwen3-4B-MLX-4bit",
    "qwen3-8b": "Qwen/Qwen3-8B-MLX-4bit",
}
BUNDLED_MODELS = {
    "demo": demo.TARGET_PATH,
    "demo-draft": demo.DRAFT_PATH,
    "demo-hybrid": demo.HYBRID_PATH,
}
PREFERRED_MODEL = "qwen3-0.6b"

# Files required for loading, all among those that mlx_lm downloads, so that its cache is complete.
# A repository may have the weights in other formats as well.
CONFIG_PATTERNS = ["*.json", "*.txt", "*.jinja"]
DOWNLOAD_PATTERNS = [*CONFIG_PATTERNS, layout.WEIGHT_FILES]


def shortcut_name_to_full_name(name: str) -> str:
    """Expands a short name (case-insensitive) to a hub id or bundled model path.

    Any other name is returned unchanged.
    """
    if name.lower() in BUNDLED_MODELS:
        return str(BUNDLED_MODELS[name.lower()])
    return SHORT_NAMES.get(name.lower(), name)


def default_model() -> tuple[str, str]:
    """Default model, as (name, reason for the choice)."""
    if find_in_cache(SHORT_NAMES[PREFERRED_MODEL]) is not None:
        return PREFERRED_MODEL, "it is in the local hub cache"
    return "demo", f"it ships with tiny-llm, and {PREFERRED_MODEL} is not in the local hub cache"


def find_in_cache(hub_id: str) -> Path | None:
    """Folder of a hub model if fully cached, else None; files are not validated."""
    from huggingface_hub import constants  # quicker than the imports below

    if not (Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}").is_dir():
        return None
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        options = {"local_files_only": True, "allow_patterns": DOWNLOAD_PATTERNS}
        folder = Path(huggingface_hub.snapshot_download(hub_id, **options))
        layout.weight_files(folder)
    except (LocalEntryNotFoundError, HFValidationError, ModelError):
        return None
    return folder if (folder / "config.json").exists() and has_tokenizer(folder) else None


def find_model(name: str, console: "Console | None") -> Path:
    """Finds and checks a model's folder, downloading the model if necessary.

    Args:
        name: a short name, a hub id, a local folder or GGUF file, ollama:NAME or lmstudio:NAME.
        console: console for the download size; standard error if None.

    Raises:
        ModelError: the model does not exist, cannot be downloaded, or its folder is invalid.
    """
    full_name = shortcut_name_to_full_name(name)
    folder = _local_path(name) or find_in_cache(full_name)
    folder = folder or download(full_name, console, DOWNLOAD_PATTERNS)
    check_model_files(folder)
    return folder


def find_config(name: str, console: "Console | None") -> Path:
    """Like `find_model`, but only for config and tokenizer, and without checks."""
    full_name = shortcut_name_to_full_name(name)
    folder = _local_path(name) or find_in_cache(full_name)
    return folder or download(full_name, console, CONFIG_PATTERNS)


def find_files(name: str, console: "Console | None", load_format: str | None) -> Path:
    """Finds a model for a load format: `find_config` for "dummy", else `find_model`."""
    find = find_config if load_format == "dummy" else find_model
    return find(name, console)


def _local_path(name: str) -> Path | None:
    """Folder or GGUF file for a model name; None for a hub id."""
    full_name = shortcut_name_to_full_name(name)
    path = find_local_model(full_name) or Path(full_name).expanduser()
    if full_name and _exists(path):
        return path
    is_file_name = full_name.endswith(".gguf")
    if full_name.count("/") == 1 and full_name[0] not in "./~" and not is_file_name:
        return None
    raise ModelError(
        f"unknown model {short_repr(name)}; specify a folder, a GGUF file, a hub id (owner/name), "
        f"ollama:NAME, lmstudio:NAME or one of {', '.join([*BUNDLED_MODELS, *SHORT_NAMES])}."
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # raised if the name is too long for a path
        return False


def is_terminal() -> bool:
    """Whether standard error is a terminal; checked without importing `rich`."""
    return sys.stderr is not None and sys.stderr.isatty()


def stderr_console() -> "Console":
    """Default console for messages and progress bars."""
    from rich.console import Console

    return Console(stderr=True)


def download(hub_id: str, console: "Console | None", patterns: list[str]) -> Path:
    """Downloads a model from the Hugging Face hub, printing its size first.

    Raises:
        ModelError: the hub does not have the model or cannot be reached.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        # Raises specific errors such as GatedRepoError, which a dry-run download does not.
        huggingface_hub.HfApi().model_info(hub_id)
        files = huggingface_hub.snapshot_download(hub_id, allow_patterns=patterns, dry_run=True)
        size = sum(file.file_size for file in files if file.will_download)
        from rich import filesize

        message = f"downloading {hub_id}: {filesize.decimal(size)}"
        (console or stderr_console()).print(message, highlight=False)
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=patterns))
    except errors.GatedRepoError as error:  # must precede its base class, RepositoryNotFoundError
        raise ModelError(
            f"'{hub_id}' is a gated model: accept its terms on the Hugging Face hub, then run "
            "`hf auth login`."
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelError(
            f"the Hugging Face hub has no model '{hub_id}', or it is private; check the name."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(
            f"'{hub_id}' is not on this machine, and HF_HUB_OFFLINE disables downloads; "
            "unset it, or use --model demo, which needs no download."
        ) from error
    except (
        errors.HTTPError,
        errors.LocalEntryNotFoundError,
        ConnectionError,
        TimeoutError,
    ) as error:
        raise ModelError(
            f"'{hub_id}' is not on this machine, and the Hugging Face hub cannot be reached; "
            "check the network, or use --model demo, which needs no download."
        ) from error


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
        ModelError: no model or several models match the name, or the files are invalid.
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


def read_model_config(path: Path) -> Mapping[str, Any]:
    """Config with the fields of `config.json`; see `layout.read_model_config`."""
    if not path.is_file():
        return layout.read_model_config(path)
    from .gguf.config import gguf_config

    with model_errors(f"{path} cannot be loaded"):
        config = gguf_config(open_gguf(path))
        read_config(config)
    return config


def check_model_files(path: Path) -> None:
    """Checks config, tokenizer and headers of the weights; see `check_checkpoint`."""
    if not path.is_file():
        layout.check_checkpoint(path)
    elif "tokenizer.ggml.tokens" not in open_gguf(path).metadata:
        raise ModelError(f"{path} has no tokenizer; convert the model again, with its tokenizer.")
    else:
        read_model_config(path)


def has_tokenizer(path: Path) -> bool:
    return path.is_file() or layout.has_tokenizer(path)


def has_weights(path: Path) -> bool:
    has_index = (path / layout.INDEX_FILE).exists()
    return path.is_file() or has_index or any(path.glob("model*.safetensors"))


def weight_bytes(path: Path) -> int:
    if path.is_file():
        return sum(tensor.nbytes for tensor in open_gguf(path).tensors.values())
    return layout.weight_bytes(path)


def read_weights(
    path: Path, config: Mapping[str, Any], rank_shard: RankShard | None = None, mtp: bool = False
) -> weights.CheckpointModel:
    """Reads weights lazily; see `read_checkpoint`."""
    if not path.is_file():
        return weights.read_checkpoint(path, config, rank_shard, mtp)
    from .gguf.weights import read_gguf

    return read_gguf(path, config, rank_shard, mtp)


def open_tokenizer(path: Path, config: Mapping[str, Any]) -> Any:
    if path.is_file():
        return gguf_tokenizer(open_gguf(path))
    return loader.open_tokenizer(path, config)
