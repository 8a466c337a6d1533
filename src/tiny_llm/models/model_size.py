"""Memory footprint of a model, from its config and file headers alone.

Sizes are those of the lazy arrays that loading would evaluate, so they take account of sharding and
of repacking for the CPU kernels.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten

from ..kv_storage.int8_rows import KvCacheDtype
from ..kv_storage.paged_storage import LayerKv
from .checkpoint.dummy import random_bytes, random_checkpoint
from .checkpoint.safe_io import model_errors
from .checkpoint.sharding import RankShard
from .families.config import DecoderConfig, layers_kv
from .families.gated_delta_net import state_shape
from .families.linear import activation_dtype
from .families.registry import config_of, read_config
from .gguf.model_files import has_weights, read_model_config, read_weights


@dataclass(frozen=True)
class ModelSize:
    weight_bytes: int
    config: DecoderConfig  # of a rank
    state_bytes: int  # bytes per recurrent-state slot, over all layers; 0 without recurrent state
    max_seq_len: int
    dtype: mx.Dtype
    kv_cache_dtype: KvCacheDtype = "auto"
    num_ranks: int = 1

    @property
    def kv_layers(self) -> list[LayerKv]:
        return layers_kv(self.config, self.kv_cache_dtype)

    @property
    def kv_element_bytes(self) -> int:
        return self.num_ranks * (1 if self.kv_cache_dtype == "int8" else self.dtype.size)

    @property
    def kv_bytes_per_token(self) -> int:
        return 2 * sum(layer.size for layer in self.kv_layers) * self.kv_element_bytes


def model_size(folder: Path, num_ranks: int = 1, load_format: str = "auto") -> ModelSize:
    """Computes a checkpoint's memory sizes, summed over ranks; ModelError if it cannot be loaded.

    Without weight files, or if `load_format` is "dummy", `config.json` determines the shapes.
    """
    config = read_model_config(folder)
    is_dummy = load_format == "dummy" or not has_weights(folder)
    with model_errors(f"the model in {folder} cannot be loaded"):
        if is_dummy:
            random_bytes(config)  # raises ValueError for invalid shapes
        shards: list[RankShard | None] = [None]
        if num_ranks > 1:
            full = read_config(config)
            shards = [RankShard(full, rank, num_ranks) for rank in range(num_ranks)]
        read = (
            partial(random_checkpoint, config)
            if is_dummy
            else partial(read_weights, folder, config)
        )
        sizes = [size_of_tree(read(rank_shard=shard)) for shard in shards]
    totals = {
        name: sum(getattr(each, name) for each in sizes) for name in ("weight_bytes", "state_bytes")
    }
    return replace(sizes[0], **totals, num_ranks=num_ranks)


def size_of_tree(model: Any) -> ModelSize:
    """Computes memory sizes from a loaded model's arrays, which may be lazy."""
    config, parts = config_of(model.args), model.model
    arrays: Any = tree_flatten(model)
    # mlx_lm's modules also contain functions.
    total = sum(array.nbytes for _, array in arrays if isinstance(array, mx.array))
    dtype = activation_dtype(parts, config.exceeds_float16)
    state_bytes = 0
    if config.delta_net is not None:
        state_bytes = len(config.delta_net.layers) * state_shape(config.delta_net, dtype).nbytes
    return ModelSize(total, config, state_bytes, config.max_position_embeddings, dtype)
