"""Loading: a checkpoint's weights and tokenizer, by the model's name."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import mlx.core as mx
from rich.console import Console

from ..kernels.interleaved import InterleavedMemory
from .files import ModelError, read_json, weight_bytes
from .names import find_model
from .tokenizer import open_tokenizer
from .weights import CheckpointModel, can_read, read_checkpoint

# Below this, loading takes less time than looking at a progress bar.
PROGRESS_BYTES = 200_000_000


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


def load_weights(name: str, console: Console | None = None) -> tuple[Any, Any]:
    """Loads what our models need of a checkpoint: its weights and tokenizer, in a second.

    Quantized weights are stored in the order in which this machine's kernels read them, which need
    not be by row: see `kernels/interleaved.py`. The models of all weeks take them so.

    Args:
        name, console: see `load`; errors too.

    Returns:
        (weights, tokenizer). A week's model takes the first wherever it takes an `mlx_model`: it
        has the same `args` and layers, and cannot be called. The second does what `mlx_lm`'s
        tokenizer does. A checkpoint of a format that is not read here is loaded as by `load`.
    """
    return _load(name, console, _read)


def _load(
    name: str, console: Console | None, read: Callable[[Path], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Finds a checkpoint, reads it lazily, then its weights."""
    console = console or Console(stderr=True)
    folder = find_model(name, console)
    try:
        model, tokenizer = read(folder)
        _evaluate(model, console, weight_bytes(folder) > PROGRESS_BYTES)
    except ModelError:
        raise
    except Exception as error:  # a broken config can lead to any
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"the model in {folder} cannot be loaded: {reason}.") from error
    return model, tokenizer


def _read_with_mlx_lm(folder: Path) -> tuple[Any, Any]:
    # Imported here, because it takes seconds and a wrong name should be reported at once.
    import mlx_lm

    mlx_model, tokenizer = mlx_lm.load(str(folder), lazy=True)[:2]
    return mlx_model, tokenizer


def _read(folder: Path) -> tuple[Any, Any]:
    config = read_json(folder, "config.json")
    if not can_read(folder, config):
        return _read_with_mlx_lm(folder)
    return read_checkpoint(folder, config), open_tokenizer(folder, config)


def _evaluate(model: Any, console: Console, show: bool) -> None:
    """Reads the weights, which are lazy so far, part by part with a progress bar.

    The largest come first, the table of tokens and the head: what is being interleaved is in
    memory twice. `mlx_lm`'s own model, which can be called, keeps its rows.
    """
    table, head = getattr(getattr(model, "model", None), "embed_tokens", None), model.get("lm_head")
    parts = [part for part in (table, head, *model.layers) if part is not None]
    memory = InterleavedMemory(model) if isinstance(model, CheckpointModel) else None
    for part in _tracked(parts, console) if show else parts:
        if memory is not None:
            memory.interleave_layers(part)
        mx.eval(part.parameters())
    mx.eval(model.parameters())
    mx.clear_cache()  # interleaved rows leave memory of sizes that nothing else has


def _tracked(parts: Iterable[Any], console: Console) -> Iterable[Any]:
    """The same, with a progress bar."""
    # Imported here, because a small model is loaded before this is.
    from rich.progress import track

    return track(parts, description="loading", console=console, transient=True)
