"""Which week's model runs a checkpoint."""

from typing import Any

from ..qwen3_week1 import Qwen3ModelWeek1
from ..qwen3_week2 import Qwen3ModelWeek2
from ..qwen3_week3 import Qwen3ModelWeek3
from .files import MODEL_TYPE, ModelError

WEEK_MODELS = {1: Qwen3ModelWeek1, 2: Qwen3ModelWeek2, 3: Qwen3ModelWeek3}


def dispatch_model(name: str, mlx_model: Any, week: int, **options: Any) -> Any:
    """Builds a week's model from the weights of a loaded one.

    Weeks 2 and 3 lay quantized weights out as this machine's kernels read them, wherever they come
    from, so that every way to load has the same speed; see `kernels.interleaved.lay_out`.

    Args:
        name: the model's name, for messages.
        mlx_model: from `load`, `load_weights` or `mlx_lm.load`. It stays usable, also for another
            week's model. Of an `mlx_lm` model that is laid out, the rows are let go; they are put
            together again, and are in memory a second time, when that model is used.
        week: which week's model.
        options: passed to it.

    Raises:
        ModelError: it is not a Qwen3 model; the course's layers do not have its kind of RoPE or its
            sizes; or the week has no model.
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
