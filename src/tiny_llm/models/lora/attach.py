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
from ..families.linear import AdapterBatch, LoraWeights
from .adapter import LoraMatrices, read_adapter

# Checkpoint names of linear layers, mapped to attributes of `Attention` and `Mlp`.
ATTENTION = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo"}
MLP = {"gate_proj": "w_gate", "up_proj": "w_up", "down_proj": "w_down"}
# In the order of `GatedDeltaNet.projections`.
DELTA_NET = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a")

LayerRef = tuple[Any, Any]  # location of a layer: (an object's `vars`, name) or (list, index)


def attach_adapters(
    decoder: Decoder,
    paths: Sequence[str | os.PathLike[str]],
    rank_shard: RankShard | None = None,
) -> None:
    """Reads adapters and attaches them to a decoder; adapter ids are indices into `paths`.

    Args:
        decoder: a decoder without adapters.
        paths: the adapters' folders.
        rank_shard: the decoder's shard; None for a full model.

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
    """Concatenates all adapters' matrices for one layer; None for adapters that skip the layer."""
    offsets = [0]
    for each in matrices:
        offsets.append(offsets[-1] + (0 if each is None else each.a.shape[0]))
    present = [each for each in matrices if each is not None]
    a = mx.concatenate([each.a for each in present])
    b = mx.concatenate([each.b for each in present])
    rank_offsets = mx.array(offsets, dtype=mx.int32)
    mx.eval(a, b, rank_offsets)
    return LoraWeights(a, b, rank_offsets, batch)


def _linear_layers(block: Any) -> dict[str, LayerRef]:
    """Linear layers that support adapters, by path within the block."""
    layers: dict[str, LayerRef] = {}
    if isinstance(block.mixer, GatedDeltaNet):
        for index, name in enumerate(DELTA_NET):
            layers[f"linear_attn.{name}"] = block.mixer.projections, index
        layers["linear_attn.out_proj"] = vars(block.mixer), "wo"
    else:
        mixer = vars(block.mixer)
        layers |= {f"self_attn.{name}": (mixer, key) for name, key in ATTENTION.items()}
    mlp, prefix = block.mlp, "mlp"
    if isinstance(mlp, SparseMoE):
        layers["mlp.gate"] = vars(mlp), "router"
        if mlp.shared_expert is None:
            return layers
        layers["mlp.shared_expert_gate"] = vars(mlp.shared_expert), "gate"
        mlp, prefix = mlp.shared_expert.mlp, "mlp.shared_expert"
    return layers | {f"{prefix}.{name}": (vars(mlp), key) for name, key in MLP.items()}
