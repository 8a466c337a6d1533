"""ServingModel: interface of the engine's models, and their construction from weights."""

from collections.abc import Sequence
from typing import Any, Protocol

import mlx.core as mx

from ..kernels.prepack import prepack_model
from ..kv_storage.paged_storage import KvLayout, LayerKv, PagedStorage
from ..kv_storage.step_plan import RaggedBatch
from .checkpoint.safe_io import ModelError, model_errors
from .checkpoint.weights import CheckpointModel, repacked
from .families.config import DecoderConfig
from .families.decoder import Decoder
from .families.registry import config_of
from .output_heads import EmbeddingDecoder, MtpDecoder, Task


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
    def kv_layers(self) -> Sequence[LayerKv]:
        """The layers that own keys and values; with tensor parallelism, this rank's rows."""
        ...

    @property
    def kv_element_bytes(self) -> int:
        """Bytes per element of the rows of `kv_layers`, times the number of ranks."""
        ...

    def create_paged_storage(
        self, num_pages: int, num_state_slots: int = 0, layout: KvLayout | None = None
    ) -> PagedStorage:
        """Creates KV pages and state slots, whose ids are the same in all layers.

        Memory is allocated when pages and slots are first written.

        Args:
            layout: of `kv_layers`; one block table for all layers if None.
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

        On a CPU, a token's logits are bit-identical whatever the rest of the batch. Precondition:
        all positions are within the context length.

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


def serving_model(
    name: str, mlx_model: Any, *args: Any, task: Task = "generate", **options: Any
) -> ServingModel:
    """Builds the engine's model.

    Args:
        args, options: further arguments of `Decoder`.
        task: "embed" builds an `EmbeddingDecoder`, any other task a `Decoder`.

    Raises:
        ModelError: the family or a config field is unknown, sizes are invalid, or a hybrid or
            vision model was not loaded by `load_weights`.
    """
    config = _config(name, mlx_model)
    is_nested = config.delta_net is not None or not hasattr(mlx_model, "model")  # also Qwen3-VL
    if is_nested and not isinstance(mlx_model, CheckpointModel):
        raise ModelError(
            f"'{name}' is a {config.model_type} model, which mlx_lm loads with another layout; "
            "load it with `load_weights`."
        )
    decoder = EmbeddingDecoder if task == "embed" else Decoder
    mlx_model = repacked(prepack_model(mlx_model))
    model: ServingModel = _build(name, decoder, mlx_model, *args, **options)
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
