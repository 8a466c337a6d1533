"""Linear layers and embeddings, quantized or not."""

from collections.abc import Sequence

import mlx.core as mx

from .. import kernels
from ..basics import linear
from .weights import QuantizedWeights, quantized_linear


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
