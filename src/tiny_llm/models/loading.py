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
    """Loads a model and its tokenizer through `mlx_lm`, downloading it if need be.

    Args:
        name: a short name, a hub id or a local folder.
        console: where messages and progress bars go; standard error if None.

    Returns:
        (mlx_model, tokenizer), as `mlx_lm.load` returns them.

    Raises:
        ModelError: see `find_model`; or weights that do not fit the config.
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

    Quantized weights are stored in the order in which this machine's kernels read them, which need
    not be by row: see `kernels/prepack.py`. The models of all weeks take them so.

    Args:
        name, console: see `load`; errors too.
        load_format: "auto" reads the weights; "dummy" draws random ones in the shapes and formats
            of `config.json`, which is then the only file that is needed. Without a tokenizer of its
            own such a model gets the demo's, and says so.
        rank, num_ranks: which part of the weights is loaded, and of how many (`sharding.py`).
        with_tokenizer: False spares its memory, on a rank that needs none; None takes its place.

    Raises:
        UserError: another `load_format`; `ModelError` for a model that cannot be split so.

    Returns:
        (weights, tokenizer). A week's model takes the first wherever it takes an `mlx_model`: it
        has the same `args` and layers, and cannot be called. The second does what `mlx_lm`'s
        tokenizer does. A checkpoint of a format that is not read here is loaded as by `load`.
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
    kernels.check_num_threads()  # no fault of the model's
    try:
        read_config(read_model_config(folder))  # before anything that takes time
        model, tokenizer = read(folder)
        evaluate(model, console)
    except ModelError:
        raise
    except Exception as error:  # a broken config can lead to any
        reason = str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(f"the model in {folder} cannot be loaded: {reason}.") from error
    trim_heap()  # what was needed to read files
    return model, tokenizer


def _read_with_mlx_lm(folder: Path) -> tuple[Any, Any]:
    # Imported here, because it takes seconds and a wrong name should be reported at once.
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

    The largest come first, the table of tokens and the head: what is being interleaved may be in
    memory twice. `mlx_lm`'s own model, which can be called, keeps its rows.
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
    mx.clear_cache()  # interleaved rows leave memory of sizes that nothing else has


def _with_progress(parts: Sequence[Any], console: "Console | None") -> Iterator[Any]:
    """Yields the parts, on a terminal with a progress bar after `PROGRESS_DELAY_SECONDS`."""
    if not (is_terminal() if console is None else console.is_terminal):
        yield from parts
        return
    started = time.monotonic()
    for index, part in enumerate(parts):
        if time.monotonic() - started > PROGRESS_DELAY_SECONDS:
            # Imported here, because a small model is loaded before this is, and it takes 2 MB.
            from rich.progress import Progress

            with Progress(console=console or stderr_console(), transient=True) as progress:
                task = progress.add_task("loading", total=len(parts), completed=index)
                for rest in parts[index:]:
                    yield rest
                    progress.advance(task)
            return
        yield part
