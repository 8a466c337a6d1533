"""What a token costs a model: bytes to read and operations to compute, from its config.json.

These are the costs that no implementation can avoid: each weight matrix once a step, the keys and
values of the past once a sequence. Activations are too small to matter, and so is the one row of
the embedding that a token looks up.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tiny_llm.models.checkpoint.quantization import Quantization
from tiny_llm.models.checkpoint.tensor_shapes import matrix_shapes
from tiny_llm.models.families.config import DecoderConfig
from tiny_llm.models.families.decoder import Decoder
from tiny_llm.models.families.registry import config_of, read_config

KV_BYTES = 2  # of a number in the cache: bfloat16 or float16


@dataclass(frozen=True)
class ModelCosts:
    """A model's sizes, and the costs that follow from them.

    Attributes:
        args: the sizes.
        weight_bits: of a stored weight, its share of scales and biases included.
        kv_item_bytes: of a number in the cache.
    """

    args: DecoderConfig
    weight_bits: float
    kv_item_bytes: int = KV_BYTES

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> "ModelCosts":
        """From a parsed `config.json`, of a quantized checkpoint or a plain one.

        Raises:
            ValueError: a field is missing, or makes no sense.
        """
        quantization = config.get("quantization")
        bits = 16.0
        if quantization is not None:
            bits = Quantization.from_config(quantization).bits_per_weight
        return cls(read_config(config), bits)

    @classmethod
    def from_model(cls, args: Any, model: Any) -> "ModelCosts":
        """From a model, with its weights as they are stored.

        Args:
            args: its configuration, as `mlx_lm` or `load_weights` reads it.
            model: of Week 3, or a `Decoder`.
        """
        args = config_of(args)
        weights = cls(args, weight_bits=8).weight_bytes()
        bits = 8 * _matrix_bytes(model) / weights
        return cls(args, weight_bits=bits, kv_item_bytes=model.dtype.size)

    @classmethod
    def from_folder(cls, folder: Path) -> "ModelCosts":
        """From a checkpoint's folder."""
        return cls.from_config(json.loads((folder / "config.json").read_text()))

    @cached_property
    def layers_weights(self) -> int:
        """Weights of the layers' matrices that a token goes through: of experts, those chosen."""
        shapes = [
            shape for path, shape in matrix_shapes(self.args) if path.startswith("model.layers.")
        ]
        top_k = self.args.experts.top_k if self.args.experts is not None else 0
        return sum(math.prod(s if len(s) == 2 else (top_k, *s[1:])) for s in shapes)

    @property
    def head_weights(self) -> int:
        """Weights that score the vocabulary: `lm_head`, or the embedding if it is tied."""
        head = "model.embed_tokens" if self.args.tie_word_embeddings else "lm_head"
        return math.prod(dict(matrix_shapes(self.args))[head])

    @property
    def step_weights(self) -> int:
        """Weights that a token's step multiplies: those of all layers, and of the head."""
        return self.layers_weights + self.head_weights

    def weight_bytes(self, weight_bits: float | None = None) -> float:
        """Bytes of weights that a step reads; `weight_bits` replaces the checkpoint's."""
        return self.step_weights * (weight_bits or self.weight_bits) / 8

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values that a token of the past occupies in all layers."""
        args = self.args
        numbers = 2 * args.num_hidden_layers * args.num_key_value_heads * args.head_dim
        return numbers * self.kv_item_bytes

    def decode_bytes(self, batch: int, context: int, weight_bits: float | None = None) -> float:
        """Bytes that one step reads: the weights once, and each sequence's past."""
        return self.weight_bytes(weight_bits) + batch * context * self.kv_bytes_per_token

    def decode_flops(self, batch: int, context: int) -> float:
        """Operations of one step: a multiplication and an addition count as two."""
        return batch * (2.0 * self.step_weights + self._attention_flops(context))

    def prefill_flops(self, tokens: int) -> float:
        """Operations of a prompt whose last token alone is scored against the vocabulary.

        Each token attends to those before it and itself: (tokens + 1)/2 of them on average.
        """
        products = 2.0 * tokens * self.layers_weights
        attention = tokens * self._attention_flops((tokens + 1) / 2)
        return products + attention + 2.0 * self.head_weights

    def bytes_per_token(self, context: int, batch: int = 1) -> float:
        """Bytes that decoding a token must read: its share of the weights, and its own past.

        Args:
            context: how many tokens came before it.
            batch: how many sequences decode in the same step, and share the weights.
        """
        return self.decode_bytes(batch, context) / batch

    def flops_per_token(self, context: int) -> float:
        """Operations of decoding a token after `context` others; a multiply-add counts as two."""
        return self.decode_flops(1, context)

    def _attention_flops(self, context: float) -> float:
        """One token's: query · key, then weight · value, in every head of every layer."""
        args = self.args
        return 4.0 * context * args.num_hidden_layers * args.num_attention_heads * args.head_dim


def affine_bits(bits: int, group_size: int) -> float:
    """Bits of a weight in MLX's affine format: a 16-bit scale and bias are shared by a group."""
    return bits + 32 / group_size


def _matrix_bytes(model: Any) -> int:
    """Bytes of the matrices that a step reads."""
    weights = [model.w_lm_head]
    for layer in model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        weights += [attention.wq, attention.wk, attention.wv, attention.wo]
        weights += [mlp] if isinstance(model, Decoder) else [mlp.w_gate, mlp.w_up, mlp.w_down]
    return sum(weight.nbytes for weight in weights)
