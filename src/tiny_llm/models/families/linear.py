"""Linear layers, embeddings, MLP, with the kernel for each weight format.

    4 or 8 bits, 16-bit scales    the extension     `QuantizedWeights`
    unquantized                   the extension on a CPU; MLX on a GPU and in float32
    other formats                 MLX               `MlxQuantizedWeights`

On a CPU, `repack` (`checkpoint/weights.py`) converts most other formats to one of the first two
during loading, unless scales or activations are float32.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx

from ... import kernels
from ...embedding import Embedding
from ...kernels.prepack import copy_tree, is_kernel_supported, is_lookup_table, row_major_layer
from ...quantize import QuantizedEmbedding, QuantizedWeights, project, project_each
from .config import Activation


@dataclass(frozen=True)
class MlxQuantizedWeights:
    """A matrix O×I from `mx.quantize`, for O outputs and I inputs."""

    weight: mx.array
    scales: mx.array
    biases: mx.array | None  # only in mode "affine"
    group_size: int
    bits: int
    mode: str
    dtype: mx.Dtype  # of the rows that `__call__` looks up in an embedding matrix

    def multiply(self, x: mx.array) -> mx.array:
        """Multiplies x by the transposed matrix: N..×I -> N..×O, in the dtype of `x`.

        Computed in float32 on a CPU, where MLX accumulates in the dtype of `x` and a bfloat16
        accumulator loses the tail of a long sum.
        """
        wide = x.astype(mx.float32) if kernels.computes_on_cpu() else x
        y = mx.quantized_matmul(
            wide,
            self.weight,
            self.scales,
            self.biases,
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )
        return y.astype(x.dtype)

    def __call__(self, ids: mx.array) -> mx.array:
        """Embeds token ids of any shape N.. as rows of the matrix: N.. -> N..×I."""
        rows = mx.dequantize(
            self.weight[ids],
            self.scales[ids],
            None if self.biases is None else self.biases[ids],
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )
        return rows.astype(self.dtype)


Weight = QuantizedWeights | MlxQuantizedWeights | mx.array
EmbeddingTable = Callable[[mx.array], mx.array]  # looks up rows

ACTIVATION_BITS = (16, 8)  # 16: activations are not rounded
GATES = ("gate", "shared_expert_gate", "proj")  # layer names in a mixture of experts


@dataclass
class AdapterBatch:
    """The step's LoRA adapters, set by the decoder and read by its layers."""

    ids: mx.array | None = None  # T adapter ids, −1 for no adapter; None if no token has an adapter


@dataclass(frozen=True)
class LoraWeights:
    """Low-rank matrices of all adapters for one layer; see `kernels.add_lora`."""

    a: mx.array  # R×I, where R is the sum of all adapters' ranks
    b: mx.array  # R×O, premultiplied by the adapters' scales
    # int32: adapter k has rows rank_offsets[k] to rank_offsets[k + 1] − 1; the last entry is R.
    rank_offsets: mx.array
    batch: AdapterBatch

    def add_to(self, y: mx.array, x: mx.array) -> mx.array:
        """Adds each token's LoRA update for input x, 1×T×I, to output y, 1×T×O."""
        ids = self.batch.ids
        if ids is None:
            return y
        return kernels.add_lora(y, x, self.a, self.b, self.rank_offsets, ids)


@dataclass(frozen=True)
class Linear:
    """A linear layer: x · wᵀ + bias, plus each token's LoRA update."""

    weight: Weight  # O×I, for O outputs and I inputs
    bias: mx.array | None = None  # O
    lora: LoraWeights | None = None

    def __call__(self, x: mx.array) -> mx.array:
        """Applies the layer to I input features: N..×I -> N..×O."""
        w = self.weight
        y = w.multiply(x) if isinstance(w, MlxQuantizedWeights) else project(x, w)
        return self.add_bias_and_lora(y, x)

    def add_bias_and_lora(self, y: mx.array, x: mx.array) -> mx.array:
        y = y if self.bias is None else kernels.add_bias(y, self.bias)
        return y if self.lora is None else self.lora.add_to(y, x)


def linear_from(layer: Any, dtype: mx.Dtype) -> Linear:
    """Builds a linear layer; an unquantized weight and a bias are cast to `dtype`."""
    bias = layer.bias.astype(dtype) if "bias" in layer else None
    return Linear(weight_from(layer, dtype), bias)


def weight_from(layer: Any, dtype: mx.Dtype) -> Weight:
    if "scales" not in layer:
        return layer.weight.astype(dtype)
    if is_kernel_supported(layer) and dtype != mx.float32:
        weights = QuantizedWeights.from_mlx_layer(layer)
        return replace(weights, activation_bits=getattr(layer, "activation_bits", 16))
    if "global_scale" in layer:
        raise ValueError("a layer has a global_scale, which tiny-llm does not support")
    return _mlx_weights(row_major_layer(layer), dtype)


def _mlx_weights(layer: Any, dtype: mx.Dtype) -> MlxQuantizedWeights:
    mode = getattr(layer, "mode", "affine")
    return MlxQuantizedWeights(
        layer.weight,
        layer.scales,
        layer.biases if mode == "affine" else None,
        layer.group_size,
        layer.bits,
        mode,
        dtype,
    )


def with_8_bit_activations(mlx_model: Any, dtype: mx.Dtype) -> Any:
    """Copies a model, sharing arrays; the copy rounds layer inputs, of `dtype`, to 8 bits.

    Two kinds of layers keep exact inputs: those that the kernels do not support, and gates, whose
    outputs select or weight experts.

    Raises:
        ValueError: this machine has no kernels that round activations, or they support no layer.
    """
    if kernels.prepack_rows() == 0:
        raise ValueError(
            "activation_bits=8 requires a CPU that the extension's vector kernels support; use 16"
        )
    model = copy_tree(mlx_model)
    layers = [
        layer
        for path, layer in model.named_modules()
        if "scales" in layer and is_kernel_supported(layer) and path.split(".")[-1] not in GATES
    ]
    if not layers or dtype == mx.float32:
        raise ValueError(
            "activation_bits=8 requires 4- or 8-bit weights and 16-bit activations; use 16, or a "
            "quantized checkpoint"
        )
    for layer in layers:
        layer.activation_bits = 8
    return model


def embedding_from(layer: Any, shape: tuple[int, int], dtype: mx.Dtype) -> EmbeddingTable:
    if hasattr(layer, "lookup"):  # of a GGUF file
        return layer.lookup
    if is_lookup_table(layer):
        if not hasattr(layer, "scales"):
            return lambda ids: layer.weight[ids].astype(dtype)
        return _mlx_weights(layer, dtype)
    weight = weight_from(layer, dtype)
    if isinstance(weight, QuantizedWeights):
        return QuantizedEmbedding(*shape, weight)
    return weight if isinstance(weight, MlxQuantizedWeights) else Embedding(*shape, weight)


def activation_dtype(parts: Any, exceeds_float16: bool) -> mx.Dtype:
    """Dtype of the embedding or its scales; if integers, that of the final norm.

    bfloat16 instead of float16 if the activations exceed it, see `DecoderConfig`.
    """
    table = parts.embed_tokens
    dtype: mx.Dtype = table.scales.dtype if "scales" in table else table.weight.dtype
    if not mx.issubdtype(dtype, mx.floating):
        dtype = parts.norm.weight.dtype
    return mx.bfloat16 if exceeds_float16 and dtype == mx.float16 else dtype


def linear_each(x: mx.array, layers: Sequence[Linear]) -> list[mx.array]:
    """Applies linear layers to one input, fusing matmuls of the same format."""
    weights = [layer.weight for layer in layers]
    if any(isinstance(weight, MlxQuantizedWeights) for weight in weights):
        return [layer(x) for layer in layers]
    outputs = project_each(x, weights)  # type: ignore[arg-type]
    return [layer.add_bias_and_lora(y, x) for layer, y in zip(layers, outputs, strict=True)]


class Mlp:
    """The gated feed-forward layer: down_proj(act(gate_proj x) * (up_proj x))."""

    def __init__(self, layer: Any, dtype: mx.Dtype, activation: Activation = "silu"):
        self.activation = activation
        self.gate_proj = linear_from(layer.gate_proj, dtype)
        self.up_proj = linear_from(layer.up_proj, dtype)
        self.down_proj = linear_from(layer.down_proj, dtype)

    def __call__(self, x: mx.array) -> mx.array:
        """Applies the MLP to hidden states: N..×E -> N..×E."""
        gate, up = linear_each(x, (self.gate_proj, self.up_proj))
        return self.down_proj(kernels.swiglu(gate, up, self.activation))
