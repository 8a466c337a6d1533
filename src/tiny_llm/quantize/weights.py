"""Quantized weights, and the linear layers and embeddings that read them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from .. import kernels
from ..basics import linear
from ..kernels.prepack import E2M1


@dataclass(frozen=True)
class QuantizedWeights:
    """A weight matrix O×I in MLX's affine format or 4-bit floating point (MXFP4).

    Attributes:
        scales: O×(I/group_size).
        biases: O×(I/group_size); None for MXFP4 (see `tiny_llm.kernels.prepack`).
        group_size: number of consecutive weights in a row that share a scale and a bias.
        bits: bits per stored integer.
        weight: O×(I·bits/32), uint32. `weight`, `scales` and `biases` may be prepacked (see
            `tiny_llm.kernels.prepack`).
        activation_bits: 16, or 8 to round inputs of `project` and `project_each` to 8 bits.
    """

    scales: mx.array
    biases: mx.array | None
    group_size: int
    bits: int
    weight: mx.array
    activation_bits: int = 16

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        biases = 0 if self.biases is None else self.biases.nbytes
        return self.scales.nbytes + biases + self.weight.nbytes

    @classmethod
    def from_mlx_layer(cls, mlx_layer: Any) -> "QuantizedWeights":
        """Wraps the arrays of a quantized `mlx.nn` layer without copying them.

        Raises:
            ValueError: the layer is not quantized, or in an unsupported mode.
        """
        mode = getattr(mlx_layer, "mode", "affine")
        is_quantized = hasattr(mlx_layer, "scales")
        if not is_quantized or mode not in ("affine", E2M1):
            given = f"mode '{mode}'" if is_quantized else "a layer that is not quantized"
            raise ValueError(f"expected a layer quantized in mode 'affine', got {given}.")
        # [task 2.2.1 weights]
        return cls(
            scales=mlx_layer.scales,
            biases=mlx_layer.biases,
            group_size=mlx_layer.group_size,
            bits=mlx_layer.bits,
            weight=mlx_layer.weight,
        )
        # [/task 2.2.1 weights]


def check_supported(weights: QuantizedWeights) -> None:
    """Rejects weights that the kernels do not support, before a model is built.

    Raises:
        ValueError: unsupported bits, group size or scale dtype.
    """
    bits, group_size, dtype = weights.bits, weights.group_size, weights.scales.dtype
    if not kernels.supports_quantization(bits, group_size, mx.bfloat16):
        raise ValueError(
            f"the kernels support 4 or 8 bits in groups of 32, 64 or 128, got {bits} bits in "
            f"groups of {group_size}; Week 1's model and the engine support this checkpoint."
        )
    if dtype not in (mx.float16, mx.bfloat16):
        raise ValueError(
            f"the kernels support float16 or bfloat16 scales, got {dtype}; Week 1's model and the "
            "engine support this checkpoint."
        )


def quantized_matmul(
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = True,
) -> mx.array:
    """Computes a · bᵀ with a quantized b, in the extension: N..×I -> N..×O.

    No weight is rounded, because products with the stored integers are exact and scales are applied
    per group. Batch-invariant: each row has the same bits regardless of the other rows in the call.

    Args:
        scales: O×(I/group_size), float16 or bfloat16.
        biases: like `scales`; None for 4-bit floating-point weights.
        group_size: 32, 64 or 128.
        bits: 4 or 8.
        a: N..×I, float16 or bfloat16, also the result's dtype.
        b: O×(I·bits/32), uint32: the packed integers.
        transpose_b: must be True; b has one row per output feature.

    Raises:
        ValueError: an unsupported argument, named in the message.
        UserError: the extension is not built.
    """
    # [task 2.2.1 matmul]
    return kernels.quantized_matmul(scales, biases, group_size, bits, a, b, transpose_b)
    # [/task 2.2.1 matmul]


def quantized_linear(x: mx.array, w: QuantizedWeights, bias: mx.array | None = None) -> mx.array:
    """`linear` with quantized weights O×I: N..×I -> N..×O."""
    # [task 2.2.1 linear]
    y = quantized_matmul(w.scales, w.biases, w.group_size, w.bits, x, w.weight)
    return y if bias is None else y + bias
    # [/task 2.2.1 linear]


def project(x: mx.array, w: QuantizedWeights | mx.array) -> mx.array:
    """Applies a linear layer, quantized or not, with weight O×I: N..×I -> N..×O."""
    if isinstance(w, QuantizedWeights):
        return quantized_linear(x, w) if w.activation_bits == 16 else project_each(x, [w])[0]
    return kernels.matmul(x, w) if _extension_multiplies(x, w) else linear(x, w)


def project_each(x: mx.array, weights: Sequence[QuantizedWeights | mx.array]) -> list[mx.array]:
    """Applies several linear layers to one input; bit-identical to `project`.

    If all weights have the same quantization, one `kernels.multi_quantized_matmul` computes all
    products.
    """
    quantized = [w for w in weights if isinstance(w, QuantizedWeights)]
    formats = {(w.group_size, w.bits, w.biases is None, w.activation_bits) for w in quantized}
    if len(quantized) < len(weights) or len(formats) > 1:
        return [project(x, w) for w in weights]
    group_size, bits, _, activation_bits = formats.pop()
    return kernels.multi_quantized_matmul(
        [w.scales for w in quantized],
        [w.biases for w in quantized],  # all None for MXFP4
        group_size,
        bits,
        x,
        [w.weight for w in quantized],
        activation_bits=activation_bits,
    )


def _extension_multiplies(x: mx.array, w: mx.array) -> bool:
    """Whether to use the extension: on a CPU, MLX is fast only in float32."""
    halves = x.dtype == w.dtype and x.dtype in (mx.float16, mx.bfloat16)
    return halves and kernels.computes_on_cpu() and kernels.is_built()


class QuantizedEmbedding:
    """`Embedding` with quantized weights V×E; dequantizes only looked-up rows."""

    def __init__(self, vocab_size: int, embedding_dim: int, weight: QuantizedWeights):
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.weight = weight

    def __call__(self, ids: mx.array) -> mx.array:
        """Looks up token embeddings: ids N.. -> N..×E, in the dtype of the scales.

        The row of an out-of-range id is NaN.
        """
        w = self.weight
        if ids.dtype != mx.uint32:
            ids = ids.astype(mx.int32)
        return kernels.quantized_embedding(ids, w.scales, w.biases, w.group_size, w.bits, w.weight)

    def as_linear(self, x: mx.array) -> mx.array:
        """Computes logits as dot products with the table's rows: N..×E -> N..×V."""
        return quantized_linear(x, self.weight)
