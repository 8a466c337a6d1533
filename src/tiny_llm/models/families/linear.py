"""Linear layers and embeddings: the kernel for each weight format.

    4 or 8 bits, scales of 16 bits    the extension     `QuantizedWeights`
    unquantized                       the extension on a CPU, MLX on a GPU and in float32
    other formats                     MLX               `MlxQuantizedWeights`

On a CPU, `repack.py` converts most other formats to one of the first two during loading, except
with float32 scales or activations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from ... import kernels
from ...embedding import Embedding
from ...kernels.prepack import is_kernel_supported, row_major_layer
from ...quantize import QuantizedEmbedding, QuantizedWeights, project, project_each


@dataclass(frozen=True)
class MlxQuantizedWeights:
    """A quantized matrix O×I, multiplied by MLX.

    Attributes:
        weight, scales, biases: arrays of `mx.quantize`; biases only in mode "affine".
        group_size, bits, mode: see `checkpoint/quantization.py`.
        dtype: dtype of embedded rows.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array | None
    group_size: int
    bits: int
    mode: str
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        biases = 0 if self.biases is None else self.biases.nbytes
        return self.weight.nbytes + self.scales.nbytes + biases

    def multiply(self, x: mx.array) -> mx.array:
        """N..×I -> N..×O, in the dtype of `x`.

        In float32 on a CPU: there MLX accumulates in the dtype of `x`, and bfloat16 loses the tail
        of a long sum.
        """
        wide = x.astype(mx.float32) if kernels.computes_on_cpu() else x
        product = mx.quantized_matmul(
            wide,
            self.weight,
            self.scales,
            self.biases,
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
            mode=self.mode,
        )
        return product.astype(x.dtype)

    def __call__(self, ids: mx.array) -> mx.array:
        """Embeds token ids: N.. -> N..×I."""
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
Table = QuantizedEmbedding | Embedding | MlxQuantizedWeights


@dataclass(frozen=True)
class Linear:
    """A linear layer: x · wᵀ + bias.

    Attributes:
        weight: O×I.
        bias: O; None for no bias.
    """

    weight: Weight
    bias: mx.array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the weight."""
        return self.weight.nbytes

    def __call__(self, x: mx.array) -> mx.array:
        """N..×I -> N..×O."""
        return self.with_bias(_multiply(x, self.weight))

    def with_bias(self, product: mx.array) -> mx.array:
        """Adds the bias, if any, to a product."""
        return product if self.bias is None else kernels.add_bias(product, self.bias)


def linear_from(layer: Any, dtype: mx.Dtype) -> Linear:
    """Builds a linear layer from a checkpoint's.

    Args:
        layer: has `weight`, and optionally `scales`, `biases` and `bias`.
        dtype: dtype of the activations; an unquantized weight and a bias are cast to it.
    """
    bias = layer.bias.astype(dtype) if "bias" in layer else None
    return Linear(weight_from(layer, dtype), bias)


def weight_from(layer: Any, dtype: mx.Dtype) -> Weight:
    """Builds a layer's weight; arguments as in `linear_from`."""
    if "scales" not in layer:
        return layer.weight.astype(dtype)
    if is_kernel_supported(layer) and dtype != mx.float32:
        return QuantizedWeights.from_mlx_layer(layer)
    if "global_scale" in layer:
        raise ValueError("a layer has a global_scale, which tiny-llm does not read")
    layer = row_major_layer(layer)
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


def embedding_from(layer: Any, shape: tuple[int, int], dtype: mx.Dtype) -> Table:
    """Builds an embedding of shape V×E; other arguments as in `linear_from`."""
    weight = weight_from(layer, dtype)
    if isinstance(weight, QuantizedWeights):
        return QuantizedEmbedding(*shape, weight)
    return weight if isinstance(weight, MlxQuantizedWeights) else Embedding(*shape, weight)


def activation_dtype(table: Any, norm: Any) -> mx.Dtype:
    """Dtype of a model's activations: that of its embedding or the embedding's scales.

    Args:
        table: the embedding layer.
        norm: the final norm; its dtype applies if the scales are not floating point.
    """
    dtype: mx.Dtype = table.scales.dtype if "scales" in table else table.weight.dtype
    return dtype if mx.issubdtype(dtype, mx.floating) else norm.weight.dtype


def linear_each(x: mx.array, layers: Sequence[Linear]) -> list[mx.array]:
    """Applies several linear layers to one input, fusing the products of equal formats."""
    weights = [layer.weight for layer in layers]
    if any(isinstance(weight, MlxQuantizedWeights) for weight in weights):
        return [layer(x) for layer in layers]
    products = project_each(x, weights)  # type: ignore[arg-type]
    return [layer.with_bias(product) for layer, product in zip(layers, products, strict=True)]


def _multiply(x: mx.array, weight: Weight) -> mx.array:
    return weight.multiply(x) if isinstance(weight, MlxQuantizedWeights) else project(x, weight)
