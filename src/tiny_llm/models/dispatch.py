"""Model selection: a course week's model, or the decoder for all families."""

from typing import Any

from ..kernels.prepack import prepack_model
from ..qwen3_week1 import Qwen3ModelWeek1
from ..qwen3_week2 import Qwen3ModelWeek2
from ..qwen3_week3 import Qwen3ModelWeek3
from .checkpoint.repack import repacked
from .checkpoint.safe_io import ModelError, model_errors
from .checkpoint.weights import CheckpointModel
from .families.config import DecoderConfig
from .families.decoder import Decoder
from .families.registry import config_of
from .heads.mtp import MtpDecoder
from .heads.pooling import EmbeddingDecoder, Task
from .protocol import ServingModel

WEEK_MODELS = {1: Qwen3ModelWeek1, 2: Qwen3ModelWeek2, 3: Qwen3ModelWeek3}


def dispatch_model(name: str, mlx_model: Any, week: int, **options: Any) -> Any:
    """Builds the model of a course week from loaded weights.

    For weeks 2 and 3, quantized weights are prepacked for this machine's kernels if loading has
    not done so.

    Args:
        mlx_model: from `load`, `load_weights` or `mlx_lm.load`; remains usable. Prepacking an
            `mlx_lm` model releases its row-major weights; calling that model afterwards recreates
            them, which doubles the memory.

    Raises:
        ModelError: the week has no model, the checkpoint is not a Qwen3 model, or the course's
            layers do not support its config, RoPE, quantization or sizes.
    """
    if week not in WEEK_MODELS:
        weeks = ", ".join(str(known) for known in WEEK_MODELS)
        raise ModelError(f"week {week} has no model; choose one of {weeks}.")
    unsupported = _unsupported_by_course(_config(name, mlx_model))
    if unsupported is not None:
        raise ModelError(
            f"'{name}' {unsupported}, which the course's layers do not implement; use LLM, or "
            "the commands with --loader engine."
        )
    return _build(name, WEEK_MODELS[week], mlx_model, **options)


def serving_model(
    name: str, mlx_model: Any, *args: Any, task: Task = "generate", **options: Any
) -> ServingModel:
    """Builds the engine's model; `args` and `options` are those of `Decoder`.

    Args:
        task: "embed" builds an `EmbeddingDecoder`, any other task a `Decoder`.

    Raises:
        ModelError: the family or a config field is unknown, sizes are invalid, or a hybrid or
            vision model was not loaded by `load_weights`.
    """
    config = _config(name, mlx_model)
    is_nested = config.delta_net is not None or not hasattr(mlx_model, "model")  # also Qwen3-VL
    if is_nested and not isinstance(mlx_model, CheckpointModel):
        raise ModelError(
            f"'{name}' is a {config.model_type} model, whose layout differs in mlx_lm; load it "
            "with `load_weights`."
        )
    decoder = EmbeddingDecoder if task == "embed" else Decoder
    mlx_model = repacked(prepack_model(mlx_model))
    model: ServingModel = _build(name, decoder, mlx_model, *args, **options)
    return model


def mtp_model(name: str, mlx_model: Any, **options: Any) -> MtpDecoder:
    """Builds the multi-token prediction (MTP) layer; ModelError if it was not loaded."""
    check_has_mtp(name, mlx_model)
    layer: MtpDecoder = _build(name, MtpDecoder, mlx_model, **options)
    return layer


def check_has_mtp(name: str, mlx_model: Any) -> None:
    if not _config(name, mlx_model).has_mtp:
        raise ModelError(
            f"'{name}' was loaded without its multi-token prediction layer; pass its name or "
            "folder, or load it with `load_weights(…, mtp=True)`."
        )


def _build(name: str, model: Any, *args: Any, **options: Any) -> Any:
    with model_errors(f"'{name}' cannot be built"):
        return model(*args, **options)


def _config(name: str, mlx_model: Any) -> DecoderConfig:
    with model_errors(f"'{name}' cannot be built"):
        return config_of(mlx_model.args)


def _unsupported_by_course(config: DecoderConfig) -> str | None:
    if config.model_type != "qwen3":
        return f"is a model of type '{config.model_type}'"
    if config.rope_scaling is not None:
        return f"scales RoPE with '{config.rope_scaling.rope_type}'"
    if config.sliding_window is not None:
        return f"has a sliding window of {config.sliding_window.size} tokens"
    return "has biases in its attention" if config.qkv_bias else None
