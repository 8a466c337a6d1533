"""Cost of a model's steps from its config.json: bytes moved and operations.

These are lower bounds for any implementation: each weight matrix and each sequence's cached keys
and values are read once per step, and recurrent states are read and written. Activations and
embedding rows are negligible and not counted.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx

from tiny_llm.models.checkpoint.tensor_shapes import Quantization, matrix_shapes
from tiny_llm.models.families.config import DecoderConfig
from tiny_llm.models.families.decoder import Decoder
from tiny_llm.models.families.experts import SparseMoE
from tiny_llm.models.families.gated_delta_net import state_shape
from tiny_llm.models.families.registry import config_of, read_config
from tiny_llm.models.hub import read_model_config, weight_bytes

KV_BYTES = 2  # bytes per cached element in bfloat16 or float16


@dataclass(frozen=True)
class ModelCosts:
    """A model's dimensions and the costs derived from them."""

    args: DecoderConfig
    weight_bits: float  # bits per stored weight, including scales and biases
    kv_item_bytes: int = KV_BYTES  # bytes per cached key or value element

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelCosts":
        """Creates the costs from a parsed `config.json`, quantized or not.

        Raises:
            ValueError: a field is missing or invalid.
        """
        quantization = config.get("quantization")
        bits = 16.0
        if quantization is not None:
            bits = Quantization.from_config(quantization).bits_per_weight
        return cls(read_config(config), bits)

    @classmethod
    def from_model(cls, args: Any, model: Any) -> "ModelCosts":
        """Creates the costs of a loaded model, with its weight format in memory.

        Args:
            args: the model's configuration, as read by `mlx_lm` or `load_weights`.
            model: Week 3's model or a `Decoder`.
        """
        args = config_of(args)
        weights = cls(args, weight_bits=8).weight_bytes()
        bits = 8 * matrix_bytes(model) / weights
        return cls(args, weight_bits=bits, kv_item_bytes=model.dtype.size)

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelCosts":
        """Creates the costs of a checkpoint folder or a GGUF file, as it is stored."""
        if not folder.is_file():
            return cls.from_config(json.loads((folder / "config.json").read_text()))
        config = read_config(read_model_config(folder))
        weights = sum(math.prod(shape) for _, shape in matrix_shapes(config))
        return cls(config, weight_bits=8 * weight_bytes(folder) / weights)

    @cached_property
    def layers_weights(self) -> int:
        """Number of layer weights used per token; only selected experts count."""
        shapes = [
            shape for path, shape in matrix_shapes(self.args) if path.startswith("model.layers.")
        ]
        top_k = self.args.experts.top_k if self.args.experts is not None else 0
        return sum(math.prod(s if len(s) == 2 else (top_k, *s[1:])) for s in shapes)

    @property
    def head_weights(self) -> int:
        """Number of weights of the LM head, which may be the tied embedding."""
        head = "model.embed_tokens" if self.args.tie_word_embeddings else "lm_head"
        return math.prod(dict(matrix_shapes(self.args))[head])

    @property
    def step_weights(self) -> int:
        """Number of weights multiplied per token: all layers and the LM head."""
        return self.layers_weights + self.head_weights

    def weight_bytes(self, weight_bits: float | None = None) -> float:
        """Bytes of weights read per step; `weight_bits` overrides the bits per weight."""
        return self.step_weights * (weight_bits or self.weight_bits) / 8

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of a cached token's keys and values in all layers."""
        shapes = map(self.args.kv_shape_of, self.args.kv_layers)
        return 2 * sum(H * D for H, D in shapes) * self.kv_item_bytes

    @property
    def state_bytes(self) -> int:
        """Bytes of a sequence's recurrent state in all layers; 0 without recurrent layers."""
        net = self.args.delta_net
        if net is None:
            return 0
        shape = state_shape(net, mx.bfloat16 if self.kv_item_bytes == KV_BYTES else mx.float32)
        return len(net.layers) * shape.nbytes

    def decode_bytes(self, batch: int, context: int, weight_bits: float | None = None) -> float:
        """Bytes per decoding step: weights, and each sequence's KV cache and state."""
        sequence = context * self.kv_bytes_per_token + 2 * self.state_bytes
        return self.weight_bytes(weight_bits) + batch * sequence

    def decode_flops(self, batch: int, context: int) -> float:
        """Operations per decoding step; a multiply-add counts as two."""
        return batch * 2.0 * self.step_weights + self.decode_attention_flops(batch, context)

    def decode_attention_flops(self, batch: int, context: int) -> float:
        """Operations of attention and the delta rule in a decoding step."""
        return batch * (self._attention_flops(context) + self._delta_rule_flops)

    def prefill_bytes(self, tokens: int, weight_bits: float | None = None) -> float:
        """Bytes moved by a prompt: weights, keys and values, each once."""
        return self.weight_bytes(weight_bits) + tokens * self.kv_bytes_per_token

    def prefill_flops(self, tokens: int) -> float:
        """Operations of a prompt, with logits of the last token only."""
        matmuls = 2.0 * tokens * self.layers_weights + 2.0 * self.head_weights
        return matmuls + self.prefill_attention_flops(tokens)

    def prefill_attention_flops(self, tokens: int) -> float:
        """Operations of a prompt's causal attention and delta rule."""
        # Causal: a token attends to (tokens + 1) / 2 keys on average.
        return tokens * (self._attention_flops((tokens + 1) / 2) + self._delta_rule_flops)

    def _attention_flops(self, context: float) -> float:
        """One token's attention operations in all layers: scores and weighted sums."""
        args = self.args
        return 4.0 * context * args.num_kv_layers * args.num_attention_heads * args.head_dim

    @property
    def _delta_rule_flops(self) -> float:
        """Operations of one token's delta rule in all layers: decay, prediction, update, output."""
        net = self.args.delta_net
        if net is None:
            return 0
        state = net.num_value_heads * net.key_head_dim * net.value_head_dim
        return len(net.layers) * (7.0 * state + 2.0 * net.conv_kernel_dim * net.conv_channels)


def affine_bits(bits: int, group_size: int) -> float:
    """Bits per weight in MLX's affine format, with a 16-bit scale and bias per group."""
    return bits + 32 / group_size


def matrix_bytes(model: Any) -> int:
    """Bytes of the matrices read per step by Week 3's model or a `Decoder`."""
    weights = [model.w_lm_head]
    for layer in model.layers:
        if isinstance(model, Decoder):
            weights += [layer.mixer, layer.mlp]
            continue
        attention, mlp = layer.self_attn, layer.mlp
        weights += [attention.wq, attention.wk, attention.wv, attention.wo]
        weights += [mlp.w_gate, mlp.w_up, mlp.w_down]
    return sum(map(_array_bytes, weights))


def _array_bytes(part: Any) -> int:
    """Bytes of the matrices that a part of a model reads; only selected experts count."""
    if isinstance(part, mx.array):
        return part.nbytes if part.ndim > 1 else 0
    if isinstance(part, list):
        return sum(map(_array_bytes, part))
    size = sum(map(_array_bytes, getattr(part, "__dict__", {}).values()))
    if isinstance(part, SparseMoE):
        config = part.config
        unselected = config.num_experts - config.top_k
        size -= _array_bytes(part.experts) * unselected // config.num_experts
    return size
