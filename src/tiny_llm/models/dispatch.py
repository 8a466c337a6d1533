"""Model selection: a course week's model, or a `ServingModel` of any family."""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from ..kernels.prepack import prepack_model
from ..kv_cache.paged_storage import PagedStorage, RaggedBatch
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

WEEK_MODELS = {1: Qwen3ModelWeek1, 2: Qwen3ModelWeek2, 3: Qwen3ModelWeek3}


class ServingModel(Protocol):
    """Model that runs ragged batches over paged KV storage.

    `families.decoder.Decoder` implements it for every family.
    """

    vocab_size: int  # number of logits per token
    page_size: int  # tokens per page
    max_seq_len: int  # context length in tokens
    hidden_size: int  # features per token

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache bytes per token, over all layers."""
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes per recurrent-state slot, over all layers; 0 without recurrent state."""
        ...

    @property
    def max_window(self) -> int:
        """Sliding-window size in tokens if all layers have one, else 0."""
        ...

    def create_paged_storage(self, num_pages: int, num_state_slots: int = 0) -> PagedStorage:
        """Creates KV pages and state slots, whose ids are the same in all layers.

        Memory is allocated when pages and slots are first written, up to
        num_pages · page_size · `kv_bytes_per_token` + num_state_slots · `state_bytes` bytes.
        """
        ...

    def ragged_logits(
        self,
        ids: Sequence[int] | mx.array,
        batch: RaggedBatch,
        rows: Sequence[int] | mx.array,
        storage: PagedStorage,
    ) -> mx.array:
        """Computes the logits of one step, len(rows)×vocab_size.

        On a CPU, a token's logits are bit-identical in any batch. Precondition: all positions are
        within the context length.

        Args:
            ids: T token ids in the order of `batch`.
            batch: sequence, position and KV slot of each token.
            rows: indices of the tokens whose logits are computed, from 0 to T − 1.
            storage: from `create_paged_storage`. Evaluating `storage.arrays` writes the batch's
                keys and values; unless `rows` is empty, evaluating the result does so, too.

        Raises:
            ValueError: the number of ids is not T.
        """
        ...


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
