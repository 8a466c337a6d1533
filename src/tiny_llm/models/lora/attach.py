"""Attachment of adapters to a decoder, with matrices concatenated per layer."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from ..checkpoint.sharding import RankShard
from ..families.decoder import Decoder
from ..families.experts import SparseMoE
from ..families.gated_delta_net import GatedDeltaNet
from ..families.linear import AdapterBatch, Linear, LoraWeights
from .adapter import LoraMatrices, read_adapter


def attach_adapters(
    decoder: Decoder,
    paths: Sequence[str | os.PathLike[str]],
    rank_shard: RankShard | None = None,
) -> None:
    """Reads and attaches adapters; an adapter's id is its index in `paths`.

    Raises:
        ModelError: an adapter is incompatible with this model or does not fit in memory.
    """
    config = decoder.config if rank_shard is None else rank_shard.full_config
    adapters = [read_adapter(os.fspath(path), config, decoder.dtype, rank_shard) for path in paths]
    for index, block in enumerate(decoder.blocks):
        for name, (owner, key) in _linear_layers(block).items():
            matrices = [adapter.get(f"model.layers.{index}.{name}") for adapter in adapters]
            if any(matrices):
                lora = _concatenate(matrices, decoder.adapters)
                owner[key] = replace(owner[key], lora=lora)


def _concatenate(matrices: Sequence[LoraMatrices | None], batch: AdapterBatch) -> LoraWeights:
    """Concatenates one layer's matrices; None marks adapters that skip the layer."""
    offsets = [0]
    for each in matrices:
        offsets.append(offsets[-1] + (0 if each is None else each.a.shape[0]))
    present = [each for each in matrices if each is not None]
    a = mx.concatenate([each.a for each in present])
    b = mx.concatenate([each.b for each in present])
    rank_offsets = mx.array(offsets, dtype=mx.int32)
    mx.eval(a, b, rank_offsets)
    return LoraWeights(a, b, rank_offsets, batch)


def _linear_layers(block: Any) -> dict[str, tuple[dict[str, Any], str]]:
    """Maps a layer's path in the block to (`vars` of its owner, attribute name)."""
    mixer = "linear_attn" if isinstance(block.mixer, GatedDeltaNet) else "self_attn"
    owners = {mixer: block.mixer, "mlp": block.mlp}
    if isinstance(block.mlp, SparseMoE) and block.mlp.shared_expert is not None:
        owners["mlp.shared_expert"] = block.mlp.shared_expert
    return {
        f"{path}.{'out_proj' if name == 'wo' else name}": (vars(owner), name)
        for path, owner in owners.items()
        for name, part in vars(owner).items()
        if isinstance(part, Linear)
    }
