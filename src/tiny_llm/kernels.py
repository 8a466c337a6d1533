"""The compiled extension, imported here and nowhere else, when it is first needed.

So Week 1 runs where nothing was built, and what needs the extension says how to build it.
"""

from types import ModuleType

import mlx.core as mx

from .errors import UserError

StreamOrDevice = mx.Stream | mx.Device | mx.DeviceType | None


def extension() -> ModuleType:
    """The module `tiny_llm_ext`.

    Raises:
        UserError: it was not built, or was built for another MLX.
    """
    try:
        import tiny_llm_ext
    except ImportError as error:
        raise UserError(
            f"the C++ extension cannot be used ({error}); `pdm run build-ext` builds it."
        ) from error
    return tiny_llm_ext


def is_built() -> bool:
    """Whether the extension can be used here."""
    try:
        extension()
    except UserError:
        return False
    return True


# None of the operations has a GPU kernel yet. They run on the CPU wherever the rest of the graph
# does, unless a caller names another stream; memory is shared, so nothing is copied.


def axpby(
    x: mx.array,
    y: mx.array,
    alpha: float,
    beta: float,
    stream: StreamOrDevice = mx.cpu,
) -> mx.array:
    """alpha · x + beta · y, elementwise: the extension's first operation.

    Args:
        x, y: arrays whose shapes broadcast, any dtypes.
        alpha, beta: numbers.
        stream: where to compute.

    Returns:
        The broadcast shape, in the promoted dtype (float32 for integers).
    """
    return extension().axpby(x, y, alpha, beta, stream=stream)


def quantized_matmul(
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = True,
    stream: StreamOrDevice = mx.cpu,
) -> mx.array:
    """a · bᵀ with quantized b; the contract is that of `tiny_llm.quantize.quantized_matmul`."""
    return extension().quantized_matmul(
        scales, biases, group_size, bits, a, b, transpose_b, stream=stream
    )


def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    causal: bool = False,
    mask: mx.array | None = None,
    context_lens: mx.array | None = None,
    stream: StreamOrDevice = mx.cpu,
) -> mx.array:
    """Tiled attention; the contract is that of `tiny_llm.attention.flash_attention`.

    Here the causal rule is a flag, so that `mask` is an array or None, and `context_lens` is int32.
    """
    return extension().flash_attention(
        query, key, value, scale, causal, mask, context_lens, stream=stream
    )
