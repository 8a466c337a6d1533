"""Python bindings of the C++ extension's operations, loaded lazily.

No other module imports the extension. Week 1 does not need it. Each operation's contract (shapes,
dtypes, errors) is in its C++ header and shown by e.g. `help(tiny_llm_ext.rms_norm)`. Operations
raise ValueError if the contract is violated and UserError if the extension is not built.

Reading order: prepack, mxfp4, graph_capture, roofline, heap.
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
    """Imports the module `tiny_llm_ext`.

    Raises:
        UserError: the extension is not built, or was built for another MLX version.
    """
    try:
        import tiny_llm_ext
    except ImportError as error:
        raise UserError(
            f"the C++ extension cannot be used ({error}); run `pdm run build-ext` to build it."
        ) from error
    return tiny_llm_ext


@functools.cache
def is_built() -> bool:
    """Whether the extension can be imported."""
    try:
        extension()
    except UserError:
        return False
    return True


def check_num_threads() -> None:
    """Validates TINY_LLM_NUM_THREADS; a no-op without the extension.

    Raises:
        UserError: the value is invalid.
    """
    if is_built():
        try:
            extension().num_threads()
        except ValueError as error:
            raise UserError(str(error)) from error


def supports_quantization(bits: int, group_size: int, dtype: mx.Dtype) -> bool:
    """Whether the kernels support affine weights with this format and scale dtype."""
    halves = (mx.float16, mx.bfloat16)
    return bits in (4, 8) and group_size in (32, 64, 128) and dtype in halves


def prepack_rows() -> int:
    """Number of weight rows that the CPU kernels read interleaved (see `prepack.py`).

    0 if weights are read row-major: on a GPU, on a CPU without vector kernels, or without the
    extension.
    """
    return extension().prepack_rows() if computes_on_cpu() and is_built() else 0


def _is_installed() -> bool:
    """Whether the extension is built, without importing it."""
    package = importlib.util.find_spec("tiny_llm_ext")
    folders = (package.submodule_search_locations or []) if package else []
    return any(any(Path(folder).glob("_ext.*")) for folder in folders)


def _emulation_requested() -> bool:
    return bool(os.environ.get("TINY_LLM_EMULATED_METAL")) and not mx.metal.is_available()


def _default_stream() -> StreamOrDevice:
    """Returns None (MLX's default device) where the kernels support it, else the CPU."""
    if _emulation_requested():
        emulated = extension().emulated_gpu  # slow, only for testing Metal kernels
        if emulated.is_requested():
            return emulated.attach(extension())
    return None if mx.metal.is_available() and _is_installed() else mx.cpu


def report_emulator_faults() -> bool:
    """Prints the emulated GPU's unreported faults to stderr; returns whether there were any."""
    return _emulation_requested() and bool(extension().emulated_gpu.report_faults())


# Default stream of the operations. Without Metal, this is the CPU, even if MLX's operations run on
# a GPU; memory is shared, so nothing is copied.
_stream = _default_stream()


def _stream_or_default(stream: StreamOrDevice) -> StreamOrDevice:
    return _stream if stream is None else stream


def computes_on_cpu() -> bool:
    """Whether both MLX and the extension run on the CPU by default."""
    return mx.default_device() == mx.cpu and (_stream is None or _stream == mx.cpu)


def runs_on_default_device() -> bool:
    """Whether the extension's operations run on MLX's default device (False for CUDA GPUs)."""
    return is_built() and (_stream is None or mx.default_device() == mx.cpu)


def use_cpu() -> None:
    """Sets the CPU as the default device for MLX and the extension."""
    global _stream
    mx.set_default_device(mx.cpu)
    _stream = mx.cpu


def axpby(
    x: mx.array, y: mx.array, alpha: float, beta: float, stream: StreamOrDevice = None
) -> mx.array:
    """Computes alpha · x + beta · y; see `help(tiny_llm_ext.axpby)`."""
    return extension().axpby(x, y, alpha, beta, stream=_stream_or_default(stream))


def argmax(x: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """Index of the maximum in each row; see `help(tiny_llm_ext.argmax)`."""
    return extension().argmax(x, stream=_stream_or_default(stream))


def matmul(a: mx.array, b: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """Computes a · bᵀ for plain matrices; see `help(tiny_llm_ext.matmul)`."""
    return extension().matmul(a, b, stream=_stream_or_default(stream))


def quantized_matmul(
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = True,
    activation_bits: int = 16,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Computes a · bᵀ with a quantized b; see `help(tiny_llm_ext.quantized_matmul)`."""
    return extension().quantized_matmul(
        scales,
        biases,
        group_size,
        bits,
        a,
        b,
        transpose_b,
        activation_bits=activation_bits,
        stream=_stream_or_default(stream),
    )


def multi_quantized_matmul(
    scales: list[mx.array],
    biases: list[mx.array] | list[None] | list[mx.array | None],
    group_size: int,
    bits: int,
    a: mx.array,
    b: list[mx.array],
    activation_bits: int = 16,
    stream: StreamOrDevice = None,
) -> list[mx.array]:
    """Multiplies one input by several matrices; see `help(tiny_llm_ext.multi_quantized_matmul)`."""
    return extension().multi_quantized_matmul(
        scales,
        biases,
        group_size,
        bits,
        a,
        b,
        activation_bits=activation_bits,
        stream=_stream_or_default(stream),
    )


def grouped_quantized_matmul(
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    experts: mx.array,
    activation_bits: int = 16,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Multiplies by experts' matrices; see `help(tiny_llm_ext.grouped_quantized_matmul)`."""
    return extension().grouped_quantized_matmul(
        scales,
        biases,
        group_size,
        bits,
        a,
        b,
        experts,
        activation_bits=activation_bits,
        stream=_stream_or_default(stream),
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
    """Looks up rows of a quantized table; see `help(tiny_llm_ext.quantized_embedding)`."""
    return extension().quantized_embedding(
        ids, scales, biases, group_size, bits, weight, stream=_stream_or_default(stream)
    )


def rms_norm(x: mx.array, weight: mx.array, eps: float, stream: StreamOrDevice = None) -> mx.array:
    """`RMSNorm` in one pass; see `help(tiny_llm_ext.rms_norm)`."""
    return extension().rms_norm(x, weight, eps, stream=_stream_or_default(stream))


def add_rms_norm(
    x: mx.array, y: mx.array, weight: mx.array, eps: float, stream: StreamOrDevice = None
) -> tuple[mx.array, mx.array]:
    """Computes x + y and its RMSNorm; see `help(tiny_llm_ext.add_rms_norm)`."""
    return extension().add_rms_norm(x, y, weight, eps, stream=_stream_or_default(stream))


def swiglu(gate: mx.array, up: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """Computes silu(gate) · up; see `help(tiny_llm_ext.swiglu)`."""
    return extension().swiglu(gate, up, stream=_stream_or_default(stream))


def add_bias(x: mx.array, bias: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """Computes x + bias; see `help(tiny_llm_ext.add_bias)`."""
    return extension().add_bias(x, bias, stream=_stream_or_default(stream))


def add_lora(
    y: mx.array,
    x: mx.array,
    lora_a: mx.array,
    lora_b: mx.array,
    rank_offsets: mx.array,
    adapter_ids: mx.array,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Adds the low-rank update of each row's LoRA adapter; see `help(tiny_llm_ext.add_lora)`."""
    arrays = (y, x, lora_a, lora_b, rank_offsets, adapter_ids)
    return extension().add_lora(*arrays, stream=_stream_or_default(stream))


def topk_softmax(
    logits: mx.array, k: int, normalize: bool, stream: StreamOrDevice = None
) -> tuple[mx.array, mx.array]:
    """Selects the top-k experts and their weights; see `help(tiny_llm_ext.topk_softmax)`."""
    return extension().topk_softmax(logits, k, normalize, stream=_stream_or_default(stream))


def weighted_sum(
    x: mx.array, weights: mx.array, base: mx.array | None = None, stream: StreamOrDevice = None
) -> mx.array:
    """Weighted sum of each token's expert outputs; see `help(tiny_llm_ext.weighted_sum)`."""
    return extension().weighted_sum(x, weights, base, stream=_stream_or_default(stream))


def qk_norm_rope(
    x: mx.array,
    weight: mx.array | None,
    eps: float,
    cos: mx.array,
    sin: mx.array,
    stream: StreamOrDevice = None,
) -> mx.array:
    """RMSNorm per head, then RoPE, into attention's memory layout, without a transpose.

    See `help(tiny_llm_ext.qk_norm_rope)`; cos and sin are from `RoPE.cos_sin`. If weight is None,
    skips the norm.
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
    """Tiled attention; see `help(tiny_llm_ext.flash_attention)`."""
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
    window: int = 0,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Paged attention; see `help(tiny_llm_ext.paged_attention)`."""
    return extension().paged_attention(
        query,
        key_pages,
        value_pages,
        block_table,
        context_lens,
        scale,
        causal,
        window,
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
    window: int = 0,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Paged attention over a ragged batch; see `help(tiny_llm_ext.paged_attention_varlen)`."""
    pages = (key_pages, value_pages, cu_seqlens_q, context_lens, block_table)
    return extension().paged_attention_varlen(
        query, *pages, scale, window, stream=_stream_or_default(stream)
    )


def cache_write(
    buffer: mx.array,
    tokens: mx.array,
    offsets: list[int] | mx.array,
    overwrite: bool = False,
    stream: StreamOrDevice = None,
) -> mx.array:
    """Writes new keys or values to a cache's buffer; see `help(tiny_llm_ext.cache_write)`.

    Writes in place if the caller drops its reference, as in `buffer = cache_write(buffer, …)`.
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
    """Writes new keys or values to pages; see `help(tiny_llm_ext.paged_cache_write)`."""
    return extension().paged_cache_write(
        pages, tokens, slots, overwrite, stream=_stream_or_default(stream)
    )


def causal_conv1d(
    x: mx.array,
    weight: mx.array,
    conv_states: mx.array,
    cu_seqlens: mx.array,
    read_slots: mx.array,
    write_slots: mx.array,
    overwrite: bool = False,
    stream: StreamOrDevice = None,
) -> tuple[mx.array, mx.array]:
    """Causal depthwise convolution with state; see `help(tiny_llm_ext.causal_conv1d)`."""
    slots = (cu_seqlens, read_slots, write_slots)
    return extension().causal_conv1d(
        x, weight, conv_states, *slots, overwrite, stream=_stream_or_default(stream)
    )


def gated_delta_rule(
    qkv: mx.array,
    a: mx.array,
    b: mx.array,
    A_log: mx.array,
    dt_bias: mx.array,
    states: mx.array,
    cu_seqlens: mx.array,
    read_slots: mx.array,
    write_slots: mx.array,
    num_k_heads: int,
    overwrite: bool = False,
    stream: StreamOrDevice = None,
) -> tuple[mx.array, mx.array]:
    """Recurrence of Gated DeltaNet; see `help(tiny_llm_ext.gated_delta_rule)`."""
    gates, slots = (a, b, A_log, dt_bias), (cu_seqlens, read_slots, write_slots)
    return extension().gated_delta_rule(
        qkv, *gates, states, *slots, num_k_heads, overwrite, stream=_stream_or_default(stream)
    )


def gated_rms_norm(
    o: mx.array, z: mx.array, weight: mx.array, eps: float, stream: StreamOrDevice = None
) -> mx.array:
    """RMSNorm per head, times silu(z); see `help(tiny_llm_ext.gated_rms_norm)`."""
    return extension().gated_rms_norm(o, z, weight, eps, stream=_stream_or_default(stream))


def sigmoid_gate(x: mx.array, gate: mx.array, stream: StreamOrDevice = None) -> mx.array:
    """Computes x · sigmoid(gate); see `help(tiny_llm_ext.sigmoid_gate)`."""
    return extension().sigmoid_gate(x, gate, stream=_stream_or_default(stream))
