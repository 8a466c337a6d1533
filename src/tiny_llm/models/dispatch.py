"""Which model runs a checkpoint: a week's, or the decoder of all families."""

from typing import Any

from ..kernels.prepack import is_kernel_supported, prepack_model
from ..qwen3_week1 import Qwen3ModelWeek1
from ..qwen3_week2 import Qwen3ModelWeek2
from ..qwen3_week3 import Qwen3ModelWeek3
from .checkpoint.repack import repacked
from .checkpoint.safe_io import ModelError
from .families.config import DecoderConfig
from .families.decoder import Decoder
from .families.registry import config_of

COURSE_MODEL_TYPE = "qwen3"  # the family whose models the weeks build
WEEK_MODELS = {1: Qwen3ModelWeek1, 2: Qwen3ModelWeek2, 3: Qwen3ModelWeek3}


def dispatch_model(name: str, mlx_model: Any, week: int, **options: Any) -> Any:
    """Builds a week's model from the weights of a loaded one.

    Weeks 2 and 3 lay quantized weights out as this machine's kernels read them, wherever they come
    from, so that every way to load has the same speed; see `kernels.interleaved.prepack_model`.

    Args:
        name: the model's name, for messages.
        mlx_model: from `load`, `load_weights` or `mlx_lm.load`. It stays usable, also for another
            week's model. Of an `mlx_lm` model that is laid out, the rows are let go; they are put
            together again, and are in memory a second time, when that model is used.
        week: which week's model.
        options: passed to it.

    Raises:
        ModelError: it is not a Qwen3 model; the course's layers do not have its parts, its kind of
            RoPE, its format or its sizes; or the week has no model.
    """
    if week not in WEEK_MODELS:
        weeks = ", ".join(str(known) for known in WEEK_MODELS)
        raise ModelError(f"week {week} has no model; the weeks that have one: {weeks}.")
    missing = _unsupported_by_course(_config(name, mlx_model))
    if missing is not None:
        raise ModelError(
            f"'{name}' {missing}, which the course's layers do not implement; the engine's do: use "
            "LLM, or the commands without --loader, with the extension built."
        )
    return _build(name, WEEK_MODELS[week], mlx_model, options)


def serving_model(
    name: str, mlx_model: Any, page_size: int, attention_backend: str = "paged"
) -> Any:
    """The model that the engine runs, of any family.

    What the course builds up to Week 3 runs what it can; the rest goes to the `Decoder`.

    Args:
        name, mlx_model: see `dispatch_model`.
        page_size: tokens in a page.
        attention_backend: one of `families/attention_backends.py`; Week 3 has "paged" alone.

    Raises:
        ModelError: a family, a field or sizes that are not known.
    """
    config = _config(name, mlx_model)
    mlx_model = repacked(prepack_model(mlx_model))
    options: dict[str, Any] = {"page_size": page_size}
    fits_course_model = _unsupported_by_course(config) is None and _kernels_read_all(mlx_model)
    if fits_course_model and attention_backend == "paged":
        return _build(name, Qwen3ModelWeek3, mlx_model, options)
    options["attention_backend"] = attention_backend
    return _build(name, Decoder, mlx_model, options)


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
    """What a model has that the course's do not; None if there is nothing."""
    if config.model_type != COURSE_MODEL_TYPE:
        return f"is a model of type '{config.model_type}'"
    if config.rope_scaling is not None:
        return f"scales RoPE with '{config.rope_scaling.rope_type}'"
    return "has biases in its attention" if config.qkv_bias else None


def _kernels_read_all(mlx_model: Any) -> bool:
    """Whether all quantized layers are in a format that the course's kernels read."""
    return all(is_kernel_supported(layer) for layer in mlx_model.modules() if "scales" in layer)
