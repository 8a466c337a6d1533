"""Gated DeltaNet: a linear-attention layer with recurrent state.

    [q | k | v] = conv(W_qkv x),  z = W_z x,  a = W_a x,  b = W_b x
    o = gated_delta_rule(q, k, v) with decay a and correction b
    y = W_o · RMSNorm(o) · SiLU(z)

`attention/gated_delta.py` explains the rule. Everything between the projections is computed in
float32.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import mlx.core as mx

from ... import kernels
from ...attention import (
    causal_conv1d_reference,
    gated_delta_rule_reference,
    gated_rms_norm_reference,
)
from ...kv_storage import StateShape
from ...kv_storage.layer_cache import LayerCacheView
from .config import DecoderConfig, DeltaNetConfig
from .linear import linear_each, linear_from

StatefulOperation = Callable[..., tuple[mx.array, mx.array]]  # returns (outputs, updated states)


class GatedDeltaNet:
    """Gated DeltaNet layer over the state slots of a ragged batch."""

    def __init__(self, config: DecoderConfig, layer: Any, dtype: mx.Dtype, is_reference: bool):
        assert config.delta_net is not None
        self.config = config.delta_net
        self.in_proj_qkv = linear_from(layer.in_proj_qkv, dtype)
        self.in_proj_z = linear_from(layer.in_proj_z, dtype)
        self.in_proj_b = linear_from(layer.in_proj_b, dtype)
        self.in_proj_a = linear_from(layer.in_proj_a, dtype)
        self.wo = linear_from(layer.out_proj, dtype)
        # C channels × kernel size K, stored as K×C, the fastest layout for the kernel.
        weight = layer.conv1d.weight.squeeze(-1).astype(dtype)
        self.conv_weight = mx.contiguous(weight.T).T
        self.A_log = layer.A_log.astype(mx.float32)
        self.dt_bias = layer.dt_bias.astype(mx.float32)
        self.norm = layer.norm.weight.astype(dtype)
        self.eps = config.rms_norm_eps
        self._conv: StatefulOperation = causal_conv1d_reference
        self._delta_rule: StatefulOperation = gated_delta_rule_reference
        self._gated_norm = gated_rms_norm_reference
        if not is_reference:
            self._conv = partial(kernels.causal_conv1d, overwrite=True)
            self._delta_rule = partial(kernels.gated_delta_rule, overwrite=True)
            self._gated_norm = kernels.gated_rms_norm

    def __call__(self, x: mx.array, cache: LayerCacheView) -> mx.array:
        """Applies the layer to T tokens: 1×T×E -> 1×T×E.

        Updates the sequences' states in `cache`, the layer's state slots.
        """
        config = self.config
        projections = self.in_proj_qkv, self.in_proj_z, self.in_proj_b, self.in_proj_a
        qkv, z, b, a = (y.squeeze(0) for y in linear_each(x, projections))
        metadata, (conv_states, states) = cache.attention_metadata, cache.buffers
        slots: list[Any] = [
            metadata.cu_seqlens_q,
            metadata.state_read_slots,
            metadata.state_write_slots,
        ]
        # [task 6.4.4 layer]
        qkv, conv_states = self._conv(qkv, self.conv_weight, conv_states, *slots)
        o, states = self._delta_rule(
            qkv, a, b, self.A_log, self.dt_bias, states, *slots, config.num_key_heads
        )
        cache.buffers = [conv_states, states]
        y = self._gated_norm(o, z.reshape(o.shape), self.norm, self.eps)
        return self.wo(y.reshape(1, -1, config.value_dim))
        # [/task 6.4.4 layer]


def state_shape(config: DeltaNetConfig, dtype: mx.Dtype) -> StateShape:
    return StateShape(
        (config.conv_kernel_dim - 1, config.conv_channels),
        (config.num_value_heads, config.key_head_dim, config.value_head_dim),
        dtype,
    )
