"""Quantized weights: what they are, how they multiply, and how they become plain ones again.

A row of a weight matrix is cut into groups. Each group has a scale and a bias, and each weight is
stored as a small integer q: weight = q · scale + bias. Eight 4-bit integers fill one uint32, the
lowest bits first. At 4 bits and groups of 128, a weight costs 4.25 bits instead of bfloat16's 16:
decoding reads every weight for every token, so it gets almost four times faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from . import kernels
from .basics import linear
from .kernels.mxfp4 import E2M1
from .kernels.prepack import row_major_layer


def dequantize_linear(mlx_layer: Any) -> mx.array:
    """The plain weight of an MLX linear or embedding layer, quantized or not.

    Args:
        mlx_layer: an `mlx.nn` `Linear`, `Embedding`, or the quantized form of either.

    Returns:
        O×I: in the dtype of the scales if the layer is quantized, else the layer's own weight.
    """
    # [solution only]
    mlx_layer = row_major_layer(mlx_layer)
    # [/solution only]
    # [task 1.5.3 dequantize]
    if not hasattr(mlx_layer, "scales"):
        return mlx_layer.weight
    return mx.dequantize(
        mlx_layer.weight,
        mlx_layer.scales,
        getattr(mlx_layer, "biases", None),
        group_size=mlx_layer.group_size,
        bits=mlx_layer.bits,
        mode=getattr(mlx_layer, "mode", "affine"),
    )
    # [/task 1.5.3 dequantize]


@dataclass(frozen=True)
class QuantizedWeights:
    """A weight matrix O×I in MLX's affine format.

    Attributes:
        scales: O×(I/group_size).
        biases: O×(I/group_size); None where the four bits of a weight are a floating-point number
            (see `tiny_llm.kernels.mxfp4`).
        group_size: how many neighbours in a row share a scale and a bias.
        bits: of a stored integer.
        weight: O×(I·bits/32), uint32. The three arrays may be interleaved (see
            `tiny_llm.kernels.prepack`).
    """

    scales: mx.array
    biases: mx.array | None
    group_size: int
    bits: int
    weight: mx.array

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        biases = 0 if self.biases is None else self.biases.nbytes
        return self.scales.nbytes + biases + self.weight.nbytes

    @classmethod
    def from_mlx_layer(cls, mlx_layer: Any) -> "QuantizedWeights":
        """The weights of an `mlx.nn` `QuantizedLinear` or `QuantizedEmbedding`; nothing is copied.

        Raises:
            ValueError: the layer is not quantized, or not in the affine format.
        """
        mode = getattr(mlx_layer, "mode", "affine")
        is_quantized = hasattr(mlx_layer, "scales")
        if not is_quantized or mode not in ("affine", E2M1):
            what = f"quantized in mode '{mode}'" if is_quantized else "not quantized"
            raise ValueError(
                f"expected a layer quantized in mode 'affine', got one that is {what}."
            )
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
    """Refuses weights that `quantized_matmul` would refuse, before a model is built from them.

    Raises:
        ValueError: other bits, group sizes or scales than the kernels read.
    """
    bits, group_size, dtype = weights.bits, weights.group_size, weights.scales.dtype
    if not kernels.supports_quantization(bits, group_size, mx.bfloat16):
        raise ValueError(
            f"the checkpoint has {bits} bits in groups of {group_size}; the kernels read 4 or 8 "
            "bits in groups of 32, 64 or 128. Week 1 and the engine run it."
        )
    if dtype not in (mx.float16, mx.bfloat16):
        raise ValueError(
            f"the checkpoint's scales are {dtype}; the kernels read float16 or bfloat16. Week 1 "
            "and the engine run it."
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
    """a · bᵀ with a quantized b, through the extension.

    The integers are multiplied exactly and scaled by group; each row's result is the same to the
    last bit however many rows are computed with it.

    Args:
        scales: O×(I/group_size), float16 or bfloat16.
        biases: like `scales`; None for weights of four bits in floating point.
        group_size: 32, 64 or 128.
        bits: 4 or 8.
        a: N..×I, float16 or bfloat16.
        b: O×(I·bits/32), uint32.
        transpose_b: must be True; b is stored output-major.

    Returns:
        N..×O in the dtype of `a`.

    Raises:
        ValueError: an argument that is not as above; it is named.
        UserError: the extension is not built.
    """
    # [task 2.2.1 matmul]
    return kernels.quantized_matmul(scales, biases, group_size, bits, a, b, transpose_b)
    # [/task 2.2.1 matmul]


def quantized_linear(x: mx.array, w: QuantizedWeights, bias: mx.array | None = None) -> mx.array:
    """`linear` with quantized weights: N..×I -> N..×O."""
    # [task 2.2.1 linear]
    y = quantized_matmul(w.scales, w.biases, w.group_size, w.bits, x, w.weight)
    return y if bias is None else y + bias
    # [/task 2.2.1 linear]


def project(x: mx.array, w: QuantizedWeights | mx.array) -> mx.array:
    """A linear layer with a quantized or a plain weight: N..×I -> N..×O."""
    if isinstance(w, QuantizedWeights):
        return quantized_linear(x, w)
    return kernels.matmul(x, w) if _extension_multiplies(x, w) else linear(x, w)


def project_each(x: mx.array, weights: Sequence[QuantizedWeights | mx.array]) -> list[mx.array]:
    """Several linear layers of one input: the same bits as `project` of each, in less time.

    Matrices that are quantized in the same way are multiplied together: see
    `kernels.multi_quantized_matmul`.
    """
    quantized = [w for w in weights if isinstance(w, QuantizedWeights)]
    formats = {(w.group_size, w.bits, w.biases is None) for w in quantized}
    if len(quantized) < len(weights) or len(formats) > 1:
        return [project(x, w) for w in weights]
    group_size, bits, _ = formats.pop()
    return kernels.multi_quantized_matmul(
        [w.scales for w in quantized],
        [w.biases for w in quantized],  # all of them None, or none
        group_size,
        bits,
        x,
        [w.weight for w in quantized],
    )


def _extension_multiplies(x: mx.array, w: mx.array) -> bool:
    """Whether plain matrices should be multiplied by the extension rather than by MLX.

    On a CPU MLX is fast in float32 alone; on a GPU it is fast in every dtype.
    """
    halves = x.dtype == w.dtype and x.dtype in (mx.float16, mx.bfloat16)
    return halves and kernels.computes_on_cpu() and kernels.is_built()


class QuantizedEmbedding:
    """`Embedding` on quantized weights: only the rows that are looked up are dequantized.

    Args:
        vocab_size: V.
        embedding_dim: E.
        weight: V×E.
    """

    def __init__(self, vocab_size: int, embedding_dim: int, weight: QuantizedWeights):
        self.vocab_size = vocab_size
        self.embedding_dim = embedding_dim
        self.weight = weight

    def __call__(self, ids: mx.array) -> mx.array:
        """Looks tokens up: ids N.. -> N..×E, in the dtype of the scales.

        An id beyond the table gives a row of NaN.
        """
        w = self.weight
        if ids.dtype != mx.uint32:
            ids = ids.astype(mx.int32)
        return kernels.quantized_embedding(ids, w.scales, w.biases, w.group_size, w.bits, w.weight)

    def as_linear(self, x: mx.array) -> mx.array:
        """Scores each token of the vocabulary: N..×E -> N..×V."""
        return quantized_linear(x, self.weight)
