"""Models of the course's weeks, by number."""

from typing import Any

from ..models import ModelError
from ..models.checkpoint.safe_io import model_errors
from ..models.families.config import DecoderConfig
from ..models.families.registry import config_of
from ..qwen3_week1 import Qwen3ModelWeek1
from ..qwen3_week2 import Qwen3ModelWeek2
from ..qwen3_week3 import Qwen3ModelWeek3

WEEK_MODELS: dict[int, Any] = {1: Qwen3ModelWeek1, 2: Qwen3ModelWeek2, 3: Qwen3ModelWeek3}


def dispatch_model(name: str, mlx_model: Any, week: int, **options: Any) -> Any:
    """Builds the model of a course week from loaded weights.

    For weeks 2 and 3, quantized weights are prepacked for this machine's kernels if loading has
    not done so.

    Args:
        mlx_model: from `load`, `load_weights` or `mlx_lm.load`. Prepacking an `mlx_lm` model
            releases its row-major weights; calling that model afterwards recreates them, which
            doubles the memory.

    Raises:
        ModelError: the week has no model, the checkpoint is not a Qwen3 model, or the course's
            layers do not support its config, RoPE, quantization or sizes.
    """
    if week not in WEEK_MODELS:
        weeks = ", ".join(str(known) for known in WEEK_MODELS)
        raise ModelError(f"week {week} has no model; choose one of {weeks}.")
    with model_errors(f"'{name}' cannot be built"):
        unsupported = _unsupported(config_of(mlx_model.args))
        if unsupported is not None:
            raise ModelError(
                f"'{name}' {unsupported}, which the course's layers do not implement; use LLM, or "
                "the commands with --loader engine."
            )
        return WEEK_MODELS[week](mlx_model, **options)


def _unsupported(config: DecoderConfig) -> str | None:
    if config.model_type != "qwen3":
        return f"is a model of type '{config.model_type}'"
    if config.rope_scaling is not None:
        return f"scales RoPE with '{config.rope_scaling.rope_type}'"
    if config.sliding_window is not None:
        return f"has a sliding window of {config.sliding_window.size} tokens"
    return "has biases in its attention" if config.qkv_bias else None
