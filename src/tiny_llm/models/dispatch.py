"""Model selection: a week's model, or the decoder of all families."""

from typing import Any

from ..kernels.prepack import prepack_model
from ..qwen3_week1 import Qwen3ModelWeek1
from ..qwen3_week2 import Qwen3ModelWeek2
from ..qwen3_week3 import Qwen3ModelWeek3
from .checkpoint.repack import repacked
from .checkpoint.safe_io import ModelError
from .families.config import DecoderConfig
from .families.decoder import Decoder
from .families.registry import config_of
from .protocol import ServingModel

COURSE_MODEL_TYPE = "qwen3"  # the family of the weeks' models
WEEK_MODELS = {1: Qwen3ModelWeek1, 2: Qwen3ModelWeek2, 3: Qwen3ModelWeek3}


def dispatch_model(name: str, mlx_model: Any, week: int, **options: Any) -> Any:
    """Builds a week's model from loaded weights.

    Weeks 2 and 3 prepack quantized weights for this machine's kernels, so all loaders reach the
    same speed; see `kernels.prepack.prepack_model`.

    Args:
        name: the model's name, for error messages.
        mlx_model: from `load`, `load_weights` or `mlx_lm.load`. Remains usable, also for another
            week's model. Prepacking an `mlx_lm` model releases its row-major weights; using the
            model afterwards recreates them, which doubles the memory.
        week: number of the week.
        options: passed to the week's model.

    Raises:
        ModelError: the week has no model, the model is not a Qwen3 model, or the course's layers do
            not support its config, RoPE, quantization or sizes.
    """
    if week not in WEEK_MODELS:
        weeks = ", ".join(str(known) for known in WEEK_MODELS)
        raise ModelError(f"week {week} has no model; choose one of {weeks}.")
    unsupported = _unsupported_by_course(_config(name, mlx_model))
    if unsupported is not None:
        raise ModelError(
            f"'{name}' {unsupported}, which the course's layers do not implement; the engine's do: "
            "use LLM, or the commands without --loader, with the extension built."
        )
    return _build(name, WEEK_MODELS[week], mlx_model, options)


def serving_model(
    name: str, mlx_model: Any, page_size: int, attention_backend: str = "paged"
) -> ServingModel:
    """Builds the engine's model, of any family.

    Args:
        name, mlx_model: see `dispatch_model`.
        page_size: tokens per page.
        attention_backend: one of `ATTENTION_BACKENDS`.

    Raises:
        ModelError: an unknown family or config field, or invalid sizes.
    """
    _config(name, mlx_model)
    options = {"page_size": page_size, "attention_backend": attention_backend}
    model: ServingModel = _build(name, Decoder, repacked(prepack_model(mlx_model)), options)
    return model


def _build(name: str, model: Any, mlx_model: Any, options: dict[str, Any]) -> Any:
    try:
        return model(mlx_model, **options)
    except ValueError as error:
        raise ModelError(f"'{name}' cannot be built: {error}") from error


def _config(name: str, mlx_model: Any) -> DecoderConfig:
    try:
        return config_of(mlx_model.args)
    except ValueError as error:
        raise ModelError(f"'{name}' cannot be built: {error}.") from error


def _unsupported_by_course(config: DecoderConfig) -> str | None:
    """Feature unsupported by the course's models, as a predicate; None if all are supported."""
    if config.model_type != COURSE_MODEL_TYPE:
        return f"is a model of type '{config.model_type}'"
    if config.rope_scaling is not None:
        return f"scales RoPE with '{config.rope_scaling.rope_type}'"
    return "has biases in its attention" if config.qkv_bias else None
