"""Loading of weights and tokenizer by model name."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx

from .. import demo, kernels
from ..errors import UserError
from ..kernels.prepack import PrepackedWeights
from .checkpoint.dummy import random_checkpoint
from .checkpoint.layout import has_tokenizer, read_model_config, read_tensor_headers
from .checkpoint.nan_check import FiniteCheck
from .checkpoint.safe_io import ModelError, read_json
from .checkpoint.safetensors_header import check_dtypes
from .checkpoint.sharding import RankShard
from .checkpoint.weights import CheckpointModel, is_supported_format, read_checkpoint
from .families.registry import read_config
from .hub import find_config, find_model, is_terminal, stderr_console
from .memory import trim_heap
from .tokenizer.hf_fallback import sandbox_tokenizer
from .tokenizer.tokenizer import open_tokenizer

if TYPE_CHECKING:
    from rich.console import Console

# Named as in vLLM.
LOAD_FORMATS = ("auto", "dummy")

# Delay before a progress bar appears.
PROGRESS_DELAY_SECONDS = 1.0


def load(name: str, console: "Console | None" = None) -> tuple[Any, Any]:
    """Loads a model and its tokenizer through `mlx_lm`, downloading it if necessary.

    Args:
        name: a short name, a hub id or a local folder.
        console: output of messages and progress bars; standard error if None.

    Returns:
        (mlx_model, tokenizer) of `mlx_lm.load`.

    Raises:
        ModelError: see `find_model`; or the weights do not match the config.
    """
    return _load(find_model(name, console), console, _read_with_mlx_lm)


def load_weights(
    name: str,
    console: "Console | None" = None,
    load_format: str = "auto",
    rank: int = 0,
    num_ranks: int = 1,
    with_tokenizer: bool = True,
) -> tuple[Any, Any]:
    """Loads weights and tokenizer for tiny-llm's models, without `mlx_lm`, in a second.

    Quantized weights are prepacked for this machine's kernels (`kernels/prepack.py`); the models of
    all weeks accept that layout.

    Args:
        name, console: see `load`, also for errors.
        load_format: "auto" reads the weights; "dummy" generates random weights in the shapes and
            formats of `config.json`, the only required file. If the folder has no tokenizer, the
            demo model's is used, with a warning.
        rank, num_ranks: shard to load (`sharding.py`).
        with_tokenizer: False skips the tokenizer, to save memory on workers; None is returned.

    Raises:
        UserError: unknown `load_format`; `ModelError` if the model cannot be split.

    Returns:
        (weights, tokenizer). The weights replace an `mlx_model` as the argument of a week's model:
        same `args` and layers, but not callable. The tokenizer is equivalent to `mlx_lm`'s. A
        checkpoint in an unsupported format is loaded by `load`.
    """
    if load_format not in LOAD_FORMATS:
        raise UserError(f"the load format '{load_format}' is unknown; give auto or dummy.")

    def read(folder: Path) -> tuple[Any, Any]:
        part = _rank_shard(folder, rank, num_ranks)
        if load_format == "dummy":
            return _read_dummy(folder, console, part, with_tokenizer)
        return _read_checkpoint(folder, part, with_tokenizer)

    find = find_config if load_format == "dummy" else find_model
    return _load(find(name, console), console, read)


def _load(
    folder: Path, console: "Console | None", read: Callable[[Path], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Reads a checkpoint lazily, then its weights."""
    kernels.check_num_threads()  # an invalid argument, not an invalid model
    try:
        read_config(read_model_config(folder))  # before any slow work
        model, tokenizer = read(folder)
        evaluate(model, console)
    except ModelError:
        raise
    except Exception as error:  # an invalid config can raise anything
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"the model in {folder} cannot be loaded: {reason}.") from error
    trim_heap()  # release buffers used to read files
    return model, tokenizer


def _read_with_mlx_lm(folder: Path) -> tuple[Any, Any]:
    # Imported here because it takes seconds, and a wrong name should be reported immediately.
    import mlx_lm

    check_dtypes(read_tensor_headers(folder))
    mlx_model, tokenizer = mlx_lm.load(str(folder), lazy=True)[:2]
    sandbox_tokenizer(tokenizer, folder)
    return mlx_model, tokenizer


def _rank_shard(folder: Path, rank: int, num_ranks: int) -> RankShard | None:
    """A rank's shard; None for a single rank."""
    if num_ranks == 1:
        return None
    return RankShard(read_config(read_model_config(folder)), rank, num_ranks)


def _read_checkpoint(folder: Path, part: RankShard | None, with_tokenizer: bool) -> tuple[Any, Any]:
    config = read_json(folder, "config.json")
    if is_supported_format(folder, config):
        tokenizer = open_tokenizer(folder, config) if with_tokenizer else None
        return read_checkpoint(folder, config, part), tokenizer
    if part is not None:
        raise ValueError(f"its format is left to mlx_lm, which reads no part for {part.size} ranks")
    return _read_with_mlx_lm(folder)


def _read_dummy(
    folder: Path, console: "Console | None", part: RankShard | None, with_tokenizer: bool
) -> tuple[Any, Any]:
    """Creates random weights for a config, and optionally a tokenizer."""
    config = read_json(folder, "config.json")
    model = random_checkpoint(config, part=part)
    if not with_tokenizer:
        return model, None
    if has_tokenizer(folder):
        return model, open_tokenizer(folder, config)
    said = f"{folder} has no tokenizer; random weights get the demo's."
    (console or stderr_console()).print(said, soft_wrap=True)
    tokenizer = open_tokenizer(demo.TARGET_PATH, read_json(demo.TARGET_PATH, "config.json"))
    vocab_size = model.args.vocab_size if part is None else part.full_config.vocab_size
    if len(tokenizer) > vocab_size:
        raise ValueError(f"it has no tokenizer, and {vocab_size} tokens are too few for the demo's")
    return model, tokenizer


def evaluate(model: Any, console: "Console | None") -> None:
    """Evaluates lazy weights layer by layer, with a progress bar.

    The largest layers, embedding and LM head, come first: a layer being prepacked may be in memory
    twice. `mlx_lm`'s own model stays row-major, because it must remain callable.
    """
    table, head = getattr(getattr(model, "model", None), "embed_tokens", None), model.get("lm_head")
    parts = [part for part in (table, head, *model.layers) if part is not None]
    path_of = {id(module): path for path, module in model.named_modules()}
    memory = None
    if isinstance(model, CheckpointModel):
        memory = PrepackedWeights(model, model.weight_locations)
    check = FiniteCheck()
    for part in _with_progress(parts, console):
        if memory is not None:
            memory.prepack_layers(part)
            model.weight_locations.materialize(part)
        mx.eval(part.parameters())
        check.add(path_of[id(part)], part)
    mx.eval(model.parameters())
    check.add("model.norm", model.model.norm)  # the only other part
    check.finish()
    mx.clear_cache()  # prepacking leaves cached buffers of sizes that are not used again


def _with_progress(parts: Sequence[Any], console: "Console | None") -> Iterator[Any]:
    """Yields the parts; on a terminal, shows a progress bar after `PROGRESS_DELAY_SECONDS`."""
    if not (is_terminal() if console is None else console.is_terminal):
        yield from parts
        return
    started = time.monotonic()
    for index, part in enumerate(parts):
        if time.monotonic() - started > PROGRESS_DELAY_SECONDS:
            # Imported here: it takes 2 MB, and a small model loads faster than this import.
            from rich.progress import Progress

            with Progress(console=console or stderr_console(), transient=True) as progress:
                task = progress.add_task("loading", total=len(parts), completed=index)
                for rest in parts[index:]:
                    yield rest
                    progress.advance(task)
            return
        yield part
