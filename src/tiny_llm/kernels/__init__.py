"""The compiled extension, imported here and nowhere else, when it is first needed.

So Week 1 runs where nothing was built, and what needs the extension says how to build it.
"""

import functools
import importlib.util
from pathlib import Path
from types import ModuleType

import mlx.core as mx

from ..errors import UserError

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


@functools.cache
def is_built() -> bool:
    """Whether the extension can be used here."""
    try:
        extension()
    except UserError:
        return False
    return True


def interleaved_rows() -> int:
    """How many rows of weights the CPU's kernels want interleaved (see `interleaved.py`).

    Returns:
        Their number; 0 where the kernels, or MLX instead of them, read weights by row.
    """
    return extension().interleaved_rows() if is_built() else 0


def metal_library() -> Path | None:
    """The compiled Metal kernels, if the extension was built with them; nothing is imported."""
    package = importlib.util.find_spec("tiny_llm_ext")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (library := Path(folder) / "tiny_llm_ext.metallib").exists():
            return library
    return None


def _default_stream() -> StreamOrDevice:
    """MLX's default device (None) where there are GPU kernels for it, and the CPU elsewhere."""
    return None if mx.metal.is_available() and metal_library() else mx.cpu


# Where an operation runs if a caller names no stream. On a machine without GPU kernels that is the
# CPU, wherever the rest of the graph runs; memory is shared, so nothing is copied. Decided once:
# operations are called hundreds of times for a token.
DEFAULT_STREAM = _default_stream()


def axpby(
    x: mx.array,
    y: mx.array,
    alpha: float,
    beta: float,
    stream: StreamOrDevice = DEFAULT_STREAM,
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
    stream: StreamOrDevice = DEFAULT_STREAM,
) -> mx.array:
    """a · bᵀ with quantized b; the contract is that of `tiny_llm.quantize.quantized_matmul`."""
    return extension().quantized_matmul(
        scales, biases, group_size, bits, a, b, transpose_b, stream=stream
    )


def quantized_matmul_each(
    scales: list[mx.array],
    biases: list[mx.array],
    group_size: int,
    bits: int,
    a: mx.array,
    b: list[mx.array],
    stream: StreamOrDevice = DEFAULT_STREAM,
) -> list[mx.array]:
    """One input multiplied by several quantized matrices: one `quantized_matmul` each.

    On the CPU the results, the same bits, come from one node of the graph: the input is prepared
    once, and the threads meet once.

    Args:
        scales, biases, b: of each matrix, as in `quantized_matmul`; matrices may differ in O.
        group_size, bits, a: as in `quantized_matmul`.
        stream: where to compute.

    Returns:
        N..×O for each matrix, dtype of `a`.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().quantized_matmul_each(scales, biases, group_size, bits, a, b, stream=stream)


def rms_norm(
    x: mx.array, weight: mx.array, eps: float, stream: StreamOrDevice = DEFAULT_STREAM
) -> mx.array:
    """`tiny_llm.layer_norm.RMSNorm` in one pass.

    Args:
        x: N..×D, float32, float16 or bfloat16.
        weight: D, dtype of `x`.
        eps: keeps a zero vector from dividing by zero.
        stream: where to compute.

    Returns:
        N..×D, dtype of `x`.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().rms_norm(x, weight, eps, stream=stream)


def add_rms_norm(
    x: mx.array, y: mx.array, weight: mx.array, eps: float, stream: StreamOrDevice = DEFAULT_STREAM
) -> tuple[mx.array, mx.array]:
    """A residual connection and the normalization that follows: x + y, and its `rms_norm`.

    Args:
        x, y: N..×D, of one shape and dtype.
        weight, eps, stream: as in `rms_norm`.

    Returns:
        x + y and rms_norm(x + y), both N..×D.

    Raises:
        ValueError, UserError: as `rms_norm`.
    """
    return extension().add_rms_norm(x, y, weight, eps, stream=stream)


def swiglu(gate: mx.array, up: mx.array, stream: StreamOrDevice = DEFAULT_STREAM) -> mx.array:
    """silu(gate) · up, rounded where `tiny_llm.basics.silu` and the product round.

    Args:
        gate, up: N..×I, of one shape and dtype: float32, float16 or bfloat16.
        stream: where to compute.

    Returns:
        N..×I, in their dtype.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().swiglu(gate, up, stream=stream)


def qk_norm_rope(
    x: mx.array,
    weight: mx.array,
    eps: float,
    cos: mx.array,
    sin: mx.array,
    stream: StreamOrDevice = DEFAULT_STREAM,
) -> mx.array:
    """RMSNorm of each head, then RoPE in halves, laid out for attention: no `swapaxes` to copy.

    Args:
        x: B×L×H×D, float32, float16 or bfloat16; D even.
        weight: D, dtype of `x`.
        eps: keeps a zero vector from dividing by zero.
        cos, sin: B×L×D/2 or 1×L×D/2, float32, from `RoPE.tables`.
        stream: where to compute.

    Returns:
        B×H×L×D, dtype of `x`.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().qk_norm_rope(x, weight, eps, cos, sin, stream=stream)


def quantized_embedding(
    ids: mx.array,
    scales: mx.array,
    biases: mx.array,
    group_size: int,
    bits: int,
    weight: mx.array,
    stream: StreamOrDevice = DEFAULT_STREAM,
) -> mx.array:
    """Rows of a quantized table, dequantized: the same bits as `mx.dequantize` of those rows.

    Args:
        ids: N.., int32 or uint32. A negative one counts from the end; one beyond the table gives
            a row of NaN, because ids may only be known when it is too late to raise.
        scales, biases: V×(E/group_size), float32, float16 or bfloat16.
        group_size: 32, 64 or 128.
        bits: 4 or 8.
        weight: V×(E·bits/32), uint32.
        stream: where to compute.

    Returns:
        N..×E, dtype of `scales`.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().quantized_embedding(
        ids, scales, biases, group_size, bits, weight, stream=stream
    )


def matmul(a: mx.array, b: mx.array, stream: StreamOrDevice = DEFAULT_STREAM) -> mx.array:
    """a · bᵀ: `linear` for matrices that are not quantized, with float32 sums.

    Each row's result is the same to the last bit however many rows are computed with it.

    Args:
        a: N..×I, float32, float16 or bfloat16.
        b: O×I, dtype of `a`.
        stream: where to compute.

    Returns:
        N..×O, in their dtype.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().matmul(a, b, stream=stream)


def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    causal: bool = False,
    mask: mx.array | None = None,
    context_lens: mx.array | None = None,
    stream: StreamOrDevice = DEFAULT_STREAM,
) -> mx.array:
    """Tiled attention; the contract is that of `tiny_llm.attention.flash_attention`.

    Here the causal rule is a flag, so that `mask` is an array or None, and `context_lens` is int32.
    """
    return extension().flash_attention(
        query, key, value, scale, causal, mask, context_lens, stream=stream
    )


def argmax(x: mx.array, stream: StreamOrDevice = mx.cpu) -> mx.array:
    """The likeliest tokens: the first place where each row is largest, with all threads.

    Args:
        x: N..×V, float32, float16 or bfloat16. NaN is never the largest.
        stream: where to compute.

    Returns:
        N.., uint32.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().argmax(x, stream=stream)


def cache_write(
    buffer: mx.array,
    tokens: mx.array,
    offsets: list[int] | mx.array,
    stream: StreamOrDevice = DEFAULT_STREAM,
) -> mx.array:
    """New keys or values into a cache's buffer.

    The buffer's memory becomes the result's, and only the new tokens are written, if the caller
    keeps no other reference to it: `buffer = cache_write(buffer, …)`.

    Args:
        buffer: B×H×C×D, any dtype.
        tokens: B×H×L×D of the same dtype.
        offsets: where each sequence's tokens go, B numbers from 0 to C − L; −1 leaves one as it is.
            An array, int32, is not looked at before it is computed: any other number is as −1.
        stream: where to compute.

    Returns:
        B×H×C×D: the buffer with the tokens.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().cache_write(buffer, tokens, offsets, stream=stream)


def paged_attention(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: mx.array,
    context_lens: mx.array,
    scale: float | None = None,
    causal: bool = True,
    stream: StreamOrDevice = mx.cpu,
) -> mx.array:
    """Attention to pages; the contract is that of `tiny_llm.attention.paged.paged_attention`.

    Here the causal rule is a flag, and the page size is the pages' third dimension.
    """
    return extension().paged_attention(
        query, key_pages, value_pages, block_table, context_lens, scale, causal, stream=stream
    )


def paged_attention_varlen(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    cu_seqlens_q: mx.array,
    context_lens: mx.array,
    block_table: mx.array,
    scale: float | None = None,
    stream: StreamOrDevice = mx.cpu,
) -> mx.array:
    """Ragged; the contract is that of `tiny_llm.attention.paged.paged_attention_varlen`."""
    return extension().paged_attention_varlen(
        query,
        key_pages,
        value_pages,
        cu_seqlens_q,
        context_lens,
        block_table,
        scale,
        stream=stream,
    )


def paged_cache_write(
    pages: mx.array, tokens: mx.array, slots: mx.array, stream: StreamOrDevice = mx.cpu
) -> mx.array:
    """New keys or values into pages.

    The pages' memory becomes the result's, and only the new tokens are written, if the caller
    keeps no other reference to it: `pages = paged_cache_write(pages, …)`.

    Args:
        pages: P×H×page_size×D, float32, float16 or bfloat16.
        tokens: T×H×D or B×H×L×D of the same dtype.
        slots: T or B×L, int32: each token's place, page · page_size + row, all different. A token
            whose slot is −1, or beyond the pages, is not written.
        stream: where to compute.

    Returns:
        P×H×page_size×D: the pages with the tokens.

    Raises:
        ValueError: an argument that is not as above.
        UserError: the extension is not built.
    """
    return extension().paged_cache_write(pages, tokens, slots, stream=stream)
