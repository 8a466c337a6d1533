"""Models by name: where a checkpoint is, how it comes here, and which week's model reads it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
from rich import filesize
from rich.console import Console
from rich.progress import Progress

from . import demo
from .checkpoint import MODEL_TYPE, ModelError, check_checkpoint, read_json, weight_bytes
from .checkpoint_model import can_read, read_checkpoint
from .interleaved import InterleavedMemory
from .qwen3_week1 import Qwen3ModelWeek1
from .qwen3_week2 import Qwen3ModelWeek2
from .qwen3_week3 import Qwen3ModelWeek3
from .tokenizer import open_tokenizer

SHORTCUTS = {
    "qwen3-0.6b": "Qwen/Qwen3-0.6B-MLX-4bit",
    "qwen3-1.7b": "Qwen/Qwen3-1.7B-MLX-4bit",
    "qwen3-4b": "Qwen/Qwen3-4B-MLX-4bit",
    "qwen3-8b": "Qwen/Qwen3-8B-MLX-4bit",
}
SHIPPED = {"demo": demo.TARGET_PATH, "demo-draft": demo.DRAFT_PATH}
PREFERRED_MODEL = "qwen3-0.6b"

WEEK_MODELS = {1: Qwen3ModelWeek1, 2: Qwen3ModelWeek2, 3: Qwen3ModelWeek3}

# Of a hub repository: what loading needs, and nothing else (other formats can be twice the size).
DOWNLOAD_PATTERNS = ["*.json", "*.safetensors", "*.txt", "*.jinja"]

# Below this, loading takes less time than looking at a progress bar.
PROGRESS_BYTES = 200_000_000


def shortcut_name_to_full_name(name: str) -> str:
    """The hub id (or, for a shipped model, the folder) behind a short name.

    Args:
        name: `qwen3-0.6b`, `qwen3-1.7b`, `qwen3-4b`, `qwen3-8b`, `demo` or `demo-draft`, in any
            case; any other name is returned as it is.
    """
    if name.lower() in SHIPPED:
        return str(SHIPPED[name.lower()])
    return SHORTCUTS.get(name.lower(), name)


def default_model() -> tuple[str, str]:
    """The model to use where none was named, and why: (name, reason)."""
    if find_in_cache(SHORTCUTS[PREFERRED_MODEL]) is not None:
        return PREFERRED_MODEL, "it is in the local hub cache"
    return "demo", f"it ships with tiny-llm, and {PREFERRED_MODEL} is not in the local hub cache"


def find_in_cache(hub_id: str) -> Path | None:
    """The folder of a hub model that is on this machine, whole; None if it is not."""
    from huggingface_hub import constants  # a file of its own, while the package takes a while

    if not (Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}").is_dir():
        return None
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                hub_id, local_files_only=True, allow_patterns=DOWNLOAD_PATTERNS
            )
        )
        check_checkpoint(folder)
    except (LocalEntryNotFoundError, HFValidationError, ModelError):
        return None
    return folder


def find_model(name: str, console: Console) -> Path:
    """The folder of a model's checkpoint, checked; downloads it if it is not on this machine.

    Args:
        name: a short name, a hub id or a local folder.
        console: where a download says how big it is.

    Raises:
        ModelError: there is no such model, it cannot be had now, or the folder is broken.
    """
    full_name = shortcut_name_to_full_name(name)
    folder = Path(full_name).expanduser()
    if not (full_name and folder.is_dir()):
        looks_like_hub_id = full_name.count("/") == 1 and full_name[0] not in "./~"
        if not looks_like_hub_id:
            raise ModelError(
                f"there is no model '{name}'; give a folder, a hub id (owner/name) or one of "
                f"{', '.join([*SHIPPED, *SHORTCUTS])}."
            )
        cached = find_in_cache(full_name)
        if cached is not None:
            return cached  # checked where it was found
        folder = download(full_name, console)
    check_checkpoint(folder)
    return folder


def download(hub_id: str, console: Console) -> Path:
    """Fetches a model from the Hugging Face hub, after saying how big it is.

    Raises:
        ModelError: the hub has no such model, or cannot be reached.
    """
    import huggingface_hub
    from huggingface_hub import errors

    try:
        huggingface_hub.HfApi().model_info(
            hub_id
        )  # its errors say what is wrong, a dry run's do not
        files = huggingface_hub.snapshot_download(
            hub_id, allow_patterns=DOWNLOAD_PATTERNS, dry_run=True
        )
        size = sum(file.file_size for file in files if file.will_download)
        console.print(f"downloading {hub_id}: {filesize.decimal(size)}", highlight=False)
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=DOWNLOAD_PATTERNS))
    except errors.GatedRepoError as error:  # a kind of RepositoryNotFoundError, so it comes first
        raise ModelError(
            f"'{hub_id}' asks you to accept its terms on the Hugging Face hub; do that there, "
            "then run `hf auth login`."
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelError(
            f"the Hugging Face hub has no model '{hub_id}' that you may read; check the name."
        ) from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(
            f"'{hub_id}' is not on this machine and HF_HUB_OFFLINE forbids a download; "
            "use --model demo, which needs none."
        ) from error
    except (
        errors.HTTPError,
        errors.LocalEntryNotFoundError,
        ConnectionError,
        TimeoutError,
    ) as error:
        raise ModelError(
            f"'{hub_id}' is not on this machine and the Hugging Face hub cannot be reached; "
            "check the network, or use --model demo, which needs none."
        ) from error


def load(name: str, console: Console | None = None) -> tuple[Any, Any]:
    """Loads a model and its tokenizer through `mlx_lm`, downloading it if need be.

    Args:
        name: a short name, a hub id or a local folder.
        console: where messages and progress bars go; standard error if None.

    Returns:
        (mlx_model, tokenizer), as `mlx_lm.load` returns them.

    Raises:
        ModelError: see `find_model`; or weights that do not fit the config.
    """
    return _load(name, console, _read_with_mlx_lm)


def load_weights(
    name: str, console: Console | None = None, interleave: bool = False
) -> tuple[Any, Any]:
    """Loads what our models need of a checkpoint: its weights and tokenizer, in a second.

    Args:
        name, console: see `load`; errors too.
        interleave: store quantized weights as this machine's kernels want to read them, if that is
            not by row (see `tiny_llm.interleaved`). For the models of Weeks 2 and 3, which compute
            the same bits, sooner; not for Week 1's, whose MLX reads rows.

    Returns:
        (weights, tokenizer). A week's model takes the first wherever it takes an `mlx_model`: it
        has the same `args`, layers and arrays, and cannot be called. The second does what
        `mlx_lm`'s tokenizer does. What these two cannot be made of is loaded as by `load`.
    """
    return _load(name, console, _read, interleave)


def _load(
    name: str,
    console: Console | None,
    read: Callable[[Path], tuple[Any, Any]],
    interleave: bool = False,
) -> tuple[Any, Any]:
    """Finds a checkpoint, reads it lazily, then its weights."""
    console = console or Console(stderr=True)
    folder = find_model(name, console)
    try:
        model, tokenizer = read(folder)
        _evaluate(model, console, weight_bytes(folder) > PROGRESS_BYTES, interleave)
    except ModelError:
        raise
    except Exception as error:  # a broken field of a config can lead to any
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"the model in {folder} cannot be loaded: {reason}.") from error
    return model, tokenizer


def _read_with_mlx_lm(folder: Path) -> tuple[Any, Any]:
    # Here and not at the top: it takes seconds, and a wrong name should be told at once.
    import mlx_lm

    mlx_model, tokenizer = mlx_lm.load(str(folder), lazy=True)[:2]
    return mlx_model, tokenizer


def _read(folder: Path) -> tuple[Any, Any]:
    config = read_json(folder, "config.json")
    if not can_read(folder, config):
        return _read_with_mlx_lm(folder)
    return read_checkpoint(folder, config), open_tokenizer(folder, config)


def _evaluate(model: Any, console: Console, show: bool, interleave: bool) -> None:
    """Reads the weights, which are lazy so far, part by part with a progress bar.

    The largest come first, the table of tokens and the head: what is interleaved is there twice.
    """
    table, head = getattr(getattr(model, "model", None), "embed_tokens", None), model.get("lm_head")
    parts = [part for part in (table, head, *model.layers) if part is not None]
    memory = InterleavedMemory(model) if interleave else None
    with Progress(console=console, transient=True, disable=not show) as progress:
        for part in progress.track(parts, description="loading"):
            if memory is not None:
                memory.interleave_layers(part)
            mx.eval(part.parameters())
    mx.eval(model.parameters())
    mx.clear_cache()  # interleaved rows leave memory of sizes that nothing else has


def dispatch_model(name: str, mlx_model: Any, week: int, **options: Any) -> Any:
    """Builds a week's model from the weights of a loaded one.

    Args:
        name: the model's name, for messages.
        mlx_model: from `load`, `load_weights` or `mlx_lm.load`.
        week: which week's model.
        options: passed to it.

    Raises:
        ModelError: not a Qwen3 model, a kind of RoPE or sizes that the course's layers do not
            have, or a week that has no model.
    """
    if week not in WEEK_MODELS:
        weeks = ", ".join(str(known) for known in WEEK_MODELS)
        raise ModelError(f"week {week} has no model; the weeks that have one: {weeks}.")
    args = mlx_model.args
    if args.model_type != MODEL_TYPE:
        raise ModelError(
            f"'{name}' is a model of type '{args.model_type}'; tiny-llm serves '{MODEL_TYPE}' only."
        )
    rope_type = _rope_type(args.rope_scaling or {})
    if rope_type != "default":
        raise ModelError(
            f"'{name}' scales RoPE with '{rope_type}', which our layers do not implement; "
            "remove rope_scaling from its config.json to use the context it was trained with."
        )
    try:
        return WEEK_MODELS[week](mlx_model, **options)
    except ValueError as error:
        raise ModelError(f"'{name}' cannot be built: {error}") from error


def _rope_type(rope_scaling: dict[str, Any]) -> str:
    """Both spellings of the key occur in checkpoints."""
    return rope_scaling.get("rope_type") or rope_scaling.get("type") or "default"


def models_on_this_machine() -> Iterator[tuple[str, Path]]:
    """The models that a short name reaches without a download: (name, folder)."""
    yield from SHIPPED.items()
    for name, hub_id in SHORTCUTS.items():
        folder = find_in_cache(hub_id)
        if folder is not None:
            yield name, folder
