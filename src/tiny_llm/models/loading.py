"""Loading of weights and tokenizers; the engine's models built from them."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
from mlx.utils import tree_flatten

from .. import demo, kernels
from ..errors import UserError
from ..kernels.prepack import PrepackedWeights, prepack_model
from .checkpoint.dummy import random_bytes, random_checkpoint
from .checkpoint.layout import (
    COMPLETE_FILE,
    INDEX_FILE,
    check_dtypes,
    has_stale_index,
    read_tensor_headers,
)
from .checkpoint.safe_io import ModelError, model_errors, read_json
from .checkpoint.sharding import RankShard
from .checkpoint.weights import CheckpointModel, repacked
from .families.config import DecoderConfig
from .families.config_fields import Fields
from .families.decoder import Decoder
from .families.registry import config_of, read_config
from .hub import (
    find_files,
    find_model,
    has_tokenizer,
    is_terminal,
    open_tokenizer,
    read_model_config,
    read_weights,
    stderr_console,
    weight_bytes,
)
from .memory import total_memory, trim_heap
from .output_heads import EmbeddingDecoder, MtpDecoder, Task

if TYPE_CHECKING:
    from rich.console import Console

LOAD_FORMATS = ("auto", "dummy")  # named as in vLLM

PROGRESS_DELAY_SECONDS = 1.0


def load(name: str, console: "Console | None" = None) -> tuple[Any, Any]:
    """Loads `mlx_lm`'s model and tokenizer, downloading them if necessary.

    Args:
        name: a short name, a hub id or a local folder.
        console: console for messages and progress bars; standard error if None.

    Raises:
        ModelError: the weights do not match the config; see also `find_model`.
    """
    return _load(find_model(name, console), console, _read_with_mlx_lm)


def load_weights(
    name: str,
    console: "Console | None" = None,
    load_format: str = "auto",
    rank: int = 0,
    num_ranks: int = 1,
    with_tokenizer: bool = True,
    mtp: bool = False,
) -> tuple[Any, Any]:
    """Loads weights and tokenizer without the slow import of `mlx_lm`.

    Quantized weights are prepacked for this machine's kernels (`kernels/prepack.py`).

    Args:
        name, console: see `load`.
        load_format: "auto" reads the weights; "dummy" generates random weights in the shapes and
            formats of `config.json`, the only required file. If the folder has no tokenizer, the
            demo model's is used, with a warning.
        rank, num_ranks: load only the shard of this rank (`sharding.py`).
        with_tokenizer: False returns None as the tokenizer, to save memory on workers.
        mtp: whether to load the multi-token prediction (MTP) layer.

    Returns:
        (weights, tokenizer). Every week's model accepts the weights in place of an `mlx_lm` model,
        but they are not callable. The tokenizer has `mlx_lm`'s interface.

    Raises:
        UserError: `load_format` is unknown.
        ModelError: the model cannot be sharded; see also `load`.
    """
    if load_format not in LOAD_FORMATS:
        raise UserError(f"load_format must be 'auto' or 'dummy', got '{load_format}'.")

    def read(folder: Path) -> tuple[Any, Any]:
        config = read_model_config(folder)
        full = read_config(config, mtp)
        shard = RankShard(full, rank, num_ranks) if num_ranks > 1 else None
        tokenizer = None
        if load_format == "dummy":
            _check_memory(folder, random_bytes(config, mtp) // num_ranks)
            model = random_checkpoint(config, shard, mtp)
            if with_tokenizer:
                tokenizer = _dummy_tokenizer(folder, config, full.vocab_size, console)
            return model, tokenizer
        _check_memory(folder, weight_bytes(folder) // num_ranks)
        if with_tokenizer:
            tokenizer = open_tokenizer(folder, config)
        model = read_weights(folder, config, shard, mtp)
        if rank == 0:
            _report(folder, full, model, console)
        return model, tokenizer

    return _load(find_files(name, console, load_format), console, read)


def _load(
    folder: Path, console: "Console | None", read: Callable[[Path], tuple[Any, Any]]
) -> tuple[Any, Any]:
    """Opens a checkpoint lazily, then evaluates its weights."""
    kernels.check_num_threads()  # outside `model_errors`: its error does not concern the model
    # An invalid checkpoint can raise any exception.
    with model_errors(f"the model in {folder} cannot be loaded", Exception):
        model, tokenizer = read(folder)
        evaluate(model, console)
    trim_heap()  # releases buffers used to read files
    return model, tokenizer


def _read_with_mlx_lm(folder: Path) -> tuple[Any, Any]:
    if folder.is_file():
        raise ValueError(
            "mlx_lm does not read GGUF files; use `load_weights`, --loader engine or --solution ref"
        )
    config = read_model_config(folder)  # rejects an invalid config before the slow import
    # Imported here because it takes seconds, and an invalid name should fail immediately.
    from mlx_lm.utils import load_model

    check_dtypes(read_tensor_headers(folder))
    _check_memory(folder, weight_bytes(folder))
    return load_model(folder, lazy=True)[0], open_tokenizer(folder, config).mlx_lm


def _report(
    folder: Path, config: DecoderConfig, model: CheckpointModel, console: "Console | None"
) -> None:
    """Prints a line for each kind of content that loading ignores, and for slow weights."""
    lines = []
    arrays: Any = tree_flatten(model.parameters())
    is_float32 = all(array.dtype == mx.float32 for _, array in arrays)
    if is_float32 and kernels.computes_on_cpu() and folder.is_dir():
        lines.append(
            "on a CPU, float32 weights are more than ten times slower than bfloat16; convert them "
            "with `mlx_lm.convert --dtype bfloat16`."
        )
    if config.ignored_fields:
        lines.append(f"ignored unknown fields of config.json: {', '.join(config.ignored_fields)}.")
    if has_stale_index(folder):
        lines.append(f"read {COMPLETE_FILE} only; {INDEX_FILE} lists other files.")
    if model.num_skipped:
        owners = "the vision tower" if config.has_mtp else "the vision tower or the MTP layer"
        lines.append(
            f"skipped {model.num_skipped} tensors of {owners}; only text input is supported."
        )
    for line in lines:
        (console or stderr_console()).print(f"{folder}: {line}", soft_wrap=True, markup=False)


def _dummy_tokenizer(
    folder: Path, config: Fields, vocab_size: int, console: "Console | None"
) -> Any:
    """Opens the folder's tokenizer, or else the demo model's."""
    if has_tokenizer(folder):
        return open_tokenizer(folder, config)
    message = f"{folder} has no tokenizer; using the demo model's with the random weights."
    (console or stderr_console()).print(message, soft_wrap=True)
    tokenizer = open_tokenizer(demo.TARGET_PATH, read_json(demo.TARGET_PATH, "config.json"))
    if len(tokenizer) > vocab_size:
        raise ValueError(
            f"it has no tokenizer, and its vocab_size, {vocab_size}, is too small for the demo "
            "model's tokenizer"
        )
    return tokenizer


def _check_memory(folder: Path, num_bytes: int) -> None:
    """Rejects weights that exceed this machine's memory."""
    total = total_memory()
    if num_bytes > total:
        raise ModelError(
            f"the model in {folder} needs {num_bytes:,} bytes of memory, but this machine has "
            f"{total:,}; choose a smaller model, or one with fewer bits per weight."
        )


def evaluate(model: Any, console: "Console | None") -> None:
    """Evaluates lazy weights layer by layer, with a progress bar.

    A layer may be in memory twice while it is prepacked, so the largest layers (embedding, LM head)
    come first. A model from `mlx_lm` stays row-major, because it must remain callable.
    """
    text = getattr(model, "language_model", model).model  # mlx_lm nests the text of vision models
    others = [each for each in text.values() if isinstance(each, dict)]  # embeddings, final norm
    modules = [*others, model.get("lm_head"), *model.layers, model.get("mtp")]
    modules = [each for each in modules if each is not None]
    prepacked = None
    if isinstance(model, CheckpointModel):
        prepacked = PrepackedWeights(model, model.weight_locations)
        model.weight_locations.map_tables(model)
    for module in _with_progress(modules, console):
        if prepacked is not None:
            prepacked.prepack_layers(module)
            model.weight_locations.materialize(module)
        mx.eval(module.parameters())
    mx.eval(model.parameters())
    mx.clear_cache()  # frees buffers cached by prepacking, whose sizes do not recur


def _with_progress(modules: Sequence[Any], console: "Console | None") -> Iterator[Any]:
    """Yields `modules`; on a terminal, a progress bar appears after a delay."""
    if not (is_terminal() if console is None else console.is_terminal):
        yield from modules
        return
    started = time.monotonic()
    for index, module in enumerate(modules):
        if time.monotonic() - started > PROGRESS_DELAY_SECONDS:
            # Imported late: takes 2 MB of memory, and longer than loading a small model.
            from rich.progress import Progress

            with Progress(console=console or stderr_console(), transient=True) as progress:
                task = progress.add_task("loading", total=len(modules), completed=index)
                for remaining in modules[index:]:
                    yield remaining
                    progress.advance(task)
            return
        yield module


def serving_model(
    name: str, mlx_model: Any, *args: Any, task: Task = "generate", **options: Any
) -> Decoder:
    """Builds the engine's model.

    Args:
        args, options: further arguments of `Decoder`.
        task: "embed" builds an `EmbeddingDecoder`, any other task a `Decoder`.

    Raises:
        ModelError: the family or a config field is unknown, sizes are invalid, or a hybrid or
            vision model was not loaded by `load_weights`.
    """
    config = _build(name, config_of, mlx_model.args)
    is_nested = config.delta_net is not None or not hasattr(mlx_model, "model")  # also Qwen3-VL
    if is_nested and not isinstance(mlx_model, CheckpointModel):
        raise ModelError(
            f"'{name}' is a {config.model_type} model, which mlx_lm loads with another layout; "
            "load it with `load_weights`."
        )
    decoder = EmbeddingDecoder if task == "embed" else Decoder
    mlx_model = repacked(prepack_model(mlx_model))
    model: Decoder = _build(name, decoder, mlx_model, *args, **options)
    return model


def mtp_model(name: str, mlx_model: Any, **options: Any) -> MtpDecoder:
    """Builds the multi-token prediction (MTP) layer.

    Raises:
        ModelError: the model was loaded without this layer, or a config field is invalid.
    """
    check_has_mtp(name, mlx_model)
    layer: MtpDecoder = _build(name, MtpDecoder, mlx_model, **options)
    return layer


def check_has_mtp(name: str, mlx_model: Any) -> None:
    if not _build(name, config_of, mlx_model.args).has_mtp:
        raise ModelError(
            f"'{name}' was loaded without its multi-token prediction layer; pass its name or "
            "folder, or load it with `load_weights(…, mtp=True)`."
        )


def _build(name: str, model: Any, *args: Any, **options: Any) -> Any:
    with model_errors(f"'{name}' cannot be built"):
        return model(*args, **options)
