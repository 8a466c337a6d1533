"""The C++ extension: its only importer, loaded lazily.

Week 1 runs without a build; every other operation says how to build the extension. The operations
are functions here, with their names and defaults. Each operation's contract (shapes, dtypes,
errors) is in its C++ header; `help(tiny_llm_ext.rms_norm)` shows it. They raise ValueError if an
argument breaks that contract, and UserError if the extension is not built.

Reading order: prepack, mxfp4, graph_capture, roofline.
"""

import functools
import importlib.util
import os
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


def check_num_threads() -> None:
    """Refuses a TINY_LLM_NUM_THREADS that is no number of threads. No effect without the extension.

    Raises:
        UserError: it is refused.
    """
    if is_built():
        try:
            extension().num_threads()
        except ValueError as error:
            raise UserError(str(error)) from error


def supports_quantization(bits: int, group_size: int, dtype: mx.Dtype) -> bool:
    """Whether the kernels read affine weights of this kind, whose scales have this dtype."""
    halves = (mx.float16, mx.bfloat16)
    return bits in (4, 8) and group_size in (32, 64, 128) and dtype in halves


def prepack_rows() -> int:
    """How many rows of weights the CPU's kernels want interleaved (see `prepack.py`).

    Returns:
        Their number; 0 where the kernels, MLX instead of them or a GPU read weights by row.
    """
    return extension().prepack_rows() if computes_on_cpu() and is_built() else 0


def _is_installed() -> bool:
    """Whether the extension was built; nothing is imported."""
    package = importlib.util.find_spec("tiny_llm_ext")
    folders = (package.submodule_search_locations or []) if package else []
    return any(any(Path(folder).glob("_ext.*")) for folder in folders)


def _emulation_requested() -> bool:
    return bool(os.environ.get("TINY_LLM_EMULATED_METAL")) and not mx.metal.is_available()


def _default_stream() -> StreamOrDevice:
    """MLX's default device (None) where our kernels run on it, and the CPU elsewhere."""
    if _emulation_requested():
        emulated = extension().emulated_gpu  # for tests: an emulator, as slow as that sounds
        if emulated.is_wanted():
            return emulated.attach(extension())
    return None if mx.metal.is_available() and _is_installed() else mx.cpu


def report_emulator_faults() -> bool:
    """Whether an emulated GPU found faults that nothing has reported; now they are, on stderr."""
    return _emulation_requested() and bool(extension().emulated_gpu.report_faults())


# Where an operation runs if a caller names no stream. On a machine without Metal that is the CPU,
# wherever the rest of the graph runs; memory is shared, so nothing is copied.
_stream = _default_stream()


def _stream_or_default(stream: StreamOrDevice) -> StreamOrDevice:
    return _stream if stream is None else stream


def computes_on_cpu() -> bool:
    """Whether MLX's operations and ours run on the CPU where no stream is named."""
    return mx.default_device() == mx.cpu and (_stream is None or _stream == mx.cpu)


def runs_on_default_device() -> bool:
    """Whether our operations run on MLX's default device: not beside a GPU without Metal."""
    return is_built() and (_stream is None or mx.default_device() == mx.cpu)


def use_cpu() -> None:
    """Everything runs on the CPU from now on."""
    global _stream
    mx.set_default_device(mx.cpu)
    _stream = mx.cpu


def axpby(
    x: mx.array, y: mx.array, alpha: float, beta: float, stream: StreamOrDevice = None
) -> mx.array:
    """alpha · x + beta · y: `help(tiny_llm_ext.axpby)`."""
    return extension().axpby(x, y, alpha, beta, stream=_stream_or_default(stream))


def argmax(x: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """The likeliest tokens: `help(tiny_llm_ext.argmax)`."""
    return extension().argmax(x, stream=_stream_or_default(stream))


def matmul(a: mx.array, b: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """a · bᵀ, not quantized: `help(tiny_llm_ext.matmul)`."""
    return extension().matmul(a, b, stream=_stream_or_default(stream))


def quantized_matmul(
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = True,
    stream: StreamOrDevice = None,
) -> mx.array:
    """a · bᵀ with a quantized b: `help(tiny_llm_ext.quantized_matmul)`."""
    return extension().quantized_matmul(
        scales, biases, group_size, bits, a, b, transpose_b, stream=_stream_or_default(stream)
    )


def multi_quantized_matmul(
    scales: list[mx.array],
    biases: list[mx.array] | list[None] | list[mx.array | None],
    group_size: int,
    bits: int,
    a: mx.array,
    b: list[mx.array],
    stream: StreamOrDevice = None,
) -> list[mx.array]:
    """One input times several quantized matrices: `help(tiny_llm_ext.multi_quantized_matmul)`."""
    return extension().multi_quantized_matmul(
        scales, biases, group_size, bits, a, b, stream=_stream_or_default(stream)
    )


def grouped_quantized_matmul(
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    experts: mx.array,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Each row times its expert's matrix: `help(tiny_llm_ext.grouped_quantized_matmul)`."""
    return extension().grouped_quantized_matmul(
        scales, biases, group_size, bits, a, b, experts, stream=_stream_or_default(stream)
    )


def quantized_embedding(
    ids: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    weight: mx.array,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Rows of a quantized table: `help(tiny_llm_ext.quantized_embedding)`."""
    return extension().quantized_embedding(
        ids, scales, biases, group_size, bits, weight, stream=_stream_or_default(stream)
    )


def rms_norm(x: mx.array, weight: mx.array, eps: float, stream: StreamOrDevice = None) -> mx.array:
    """`RMSNorm` in one pass: `help(tiny_llm_ext.rms_norm)`."""
    return extension().rms_norm(x, weight, eps, stream=_stream_or_default(stream))


def add_rms_norm(
    x: mx.array, y: mx.array, weight: mx.array, eps: float, stream: StreamOrDevice = None
) -> tuple[mx.array, mx.array]:
    """x + y, and its `rms_norm`: `help(tiny_llm_ext.add_rms_norm)`."""
    return extension().add_rms_norm(x, y, weight, eps, stream=_stream_or_default(stream))


def swiglu(gate: mx.array, up: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """silu(gate) · up: `help(tiny_llm_ext.swiglu)`."""
    return extension().swiglu(gate, up, stream=_stream_or_default(stream))


def add_bias(x: mx.array, bias: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """x + bias: `help(tiny_llm_ext.add_bias)`."""
    return extension().add_bias(x, bias, stream=_stream_or_default(stream))


def topk_softmax(
    logits: mx.array, k: int, normalize: bool, stream: StreamOrDevice = None
) -> tuple[mx.array, mx.array]:
    """The likeliest experts and their weights: `help(tiny_llm_ext.topk_softmax)`."""
    return extension().topk_softmax(logits, k, normalize, stream=_stream_or_default(stream))


def weighted_sum(x: mx.array, weights: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """What the experts of each token add up to: `help(tiny_llm_ext.weighted_sum)`."""
    return extension().weighted_sum(x, weights, stream=_stream_or_default(stream))


def qk_norm_rope(
    x: mx.array,
    weight: mx.array | None,
    eps: float,
    cos: mx.array,
    sin: mx.array,
    stream: StreamOrDevice = None,
) -> mx.array:
    """`rms_norm` of each head, then RoPE, laid out for attention: no `swapaxes` to copy.

    See `help(tiny_llm_ext.qk_norm_rope)`; cos and sin are from `RoPE.cos_sin`. Without a weight
    nothing is normalized.
    """
    return extension().qk_norm_rope(x, weight, eps, cos, sin, stream=_stream_or_default(stream))


def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    causal: bool = False,
    mask: mx.array | None = None,
    context_lens: mx.array | None = None,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Tiled attention: `help(tiny_llm_ext.flash_attention)`."""
    return extension().flash_attention(
        query, key, value, scale, causal, mask, context_lens, stream=_stream_or_default(stream)
    )


def paged_attention(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: mx.array,
    context_lens: mx.array,
    scale: float | None = None,
    causal: bool = True,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Attention to pages: `help(tiny_llm_ext.paged_attention)`."""
    return extension().paged_attention(
        query,
        key_pages,
        value_pages,
        block_table,
        context_lens,
        scale,
        causal,
        stream=_stream_or_default(stream),
    )


def paged_attention_varlen(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    cu_seqlens_q: mx.array,
    context_lens: mx.array,
    block_table: mx.array,
    scale: float | None = None,
    stream: StreamOrDevice = None,
) -> mx.array:
    """The same for a ragged batch: `help(tiny_llm_ext.paged_attention_varlen)`."""
    pages = (key_pages, value_pages, cu_seqlens_q, context_lens, block_table)
    return extension().paged_attention_varlen(
        query, *pages, scale, stream=_stream_or_default(stream)
    )


def cache_write(
    buffer: mx.array,
    tokens: mx.array,
    offsets: list[int] | mx.array,
    overwrite: bool = False,
    stream: StreamOrDevice = None,
) -> mx.array:
    """New keys or values into a cache's buffer: `help(tiny_llm_ext.cache_write)`.

    They are written in place if the caller keeps no other reference:
    `buffer = cache_write(buffer, …)`.
    """
    return extension().cache_write(
        buffer, tokens, offsets, overwrite, stream=_stream_or_default(stream)
    )


def paged_cache_write(
    pages: mx.array,
    tokens: mx.array,
    slots: mx.array,
    overwrite: bool = False,
    stream: StreamOrDevice = None,
) -> mx.array:
    """New keys or values into pages, as `cache_write`: `help(tiny_llm_ext.paged_cache_write)`."""
    return extension().paged_cache_write(
        pages, tokens, slots, overwrite, stream=_stream_or_default(stream)
    )
