"""Python bindings of the C++ extension's operations, loaded lazily.

No other module imports the extension. Week 1 does not need it. Each operation's contract (shapes,
dtypes, errors) is in its C++ header and shown by e.g. `help(tiny_llm_ext.rms_norm)`. Operations
raise ValueError if the contract is violated and UserError if the extension is not built.

Reading order: prepack, mxfp4, graph_capture, roofline, heap.
"""

import functools
import importlib.util
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import mlx.core as mx

from ..errors import UserError

F = TypeVar("F", bound=Callable[..., Any])
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
    """Validates TINY_LLM_NUM_THREADS; a no-op without the extension."""
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
    """Number of rows that the CPU kernels read interleaved (`prepack.py`); 0 for row-major."""
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
        emulated = extension().emulated_gpu  # slow; for tests
        if emulated.is_requested():
            return emulated.attach(extension())
    return None if mx.metal.is_available() and _is_installed() else mx.cpu


def report_emulator_faults() -> bool:
    """Prints the emulated GPU's unreported faults to stderr; returns whether there were any."""
    return _emulation_requested() and bool(extension().emulated_gpu.report_faults())


# Default stream of the operations. Without Metal, this is the CPU, wherever the rest of the graph
# runs; memory is shared, so nothing is copied.
_stream = _default_stream()


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


def _operation(declaration: F) -> F:
    """Implements a declaration with the extension's operation of the same name.

    Adds the keyword argument `stream`; None is the default stream.
    """
    name, signature = declaration.__name__, inspect.signature(declaration)

    @functools.wraps(declaration)
    def call(*args: Any, stream: StreamOrDevice = None, **kwargs: Any) -> Any:
        operation = getattr(extension(), name)
        return operation(*args, stream=_stream if stream is None else stream, **kwargs)

    stream = inspect.signature(call, follow_wrapped=False).parameters["stream"]
    parameters = [*signature.parameters.values(), stream]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__doc__ = f"{declaration.__doc__}\n\nSee `help(tiny_llm_ext.{name})`."
    return cast("F", call)


@_operation
def axpby(x: mx.array, y: mx.array, alpha: float, beta: float) -> mx.array:
    """Computes alpha · x + beta · y."""


@_operation
def argmax(x: mx.array) -> mx.array:
    """Returns the index of each row's maximum."""


@_operation
def matmul(a: mx.array, b: mx.array) -> mx.array:
    """Computes a · bᵀ for unquantized matrices."""


@_operation
def quantized_matmul(
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    transpose_b: bool = True,
) -> mx.array:
    """Computes a · bᵀ with a quantized b."""


@_operation
def multi_quantized_matmul(
    scales: list[mx.array],
    biases: list[mx.array] | list[None] | list[mx.array | None],
    group_size: int,
    bits: int,
    a: mx.array,
    b: list[mx.array],
) -> list[mx.array]:
    """Multiplies one input by several quantized matrices; as `quantized_matmul` for each b."""


@_operation
def grouped_quantized_matmul(
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    a: mx.array,
    b: mx.array,
    experts: mx.array,
) -> mx.array:
    """Multiplies each row of a by the quantized matrix of its expert."""


@_operation
def quantized_embedding(
    ids: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    group_size: int,
    bits: int,
    weight: mx.array,
) -> mx.array:
    """Looks up and dequantizes rows of a quantized embedding table."""


@_operation
def rms_norm(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Computes `RMSNorm` in one pass over memory."""


@_operation
def add_rms_norm(
    x: mx.array, y: mx.array, weight: mx.array, eps: float
) -> tuple[mx.array, mx.array]:
    """Computes x + y and its RMSNorm."""


@_operation
def swiglu(gate: mx.array, up: mx.array) -> mx.array:
    """Computes silu(gate) · up."""


@_operation
def add_bias(x: mx.array, bias: mx.array) -> mx.array:
    """Computes x + bias."""


@_operation
def add_lora(
    y: mx.array,
    x: mx.array,
    lora_a: mx.array,
    lora_b: mx.array,
    rank_offsets: mx.array,
    adapter_ids: mx.array,
) -> mx.array:
    """Adds to y the low-rank update of each row's LoRA adapter, computed from x."""


@_operation
def topk_softmax(logits: mx.array, k: int, normalize: bool) -> tuple[mx.array, mx.array]:
    """Selects each token's k experts with the highest softmax weight."""


@_operation
def weighted_sum(x: mx.array, weights: mx.array, base: mx.array | None = None) -> mx.array:
    """Computes the weighted sum of each token's expert outputs, plus `base`."""


@_operation
def qk_norm_rope(
    x: mx.array, weight: mx.array | None, eps: float, cos: mx.array, sin: mx.array
) -> mx.array:
    """RMSNorm per head, then RoPE, into attention's memory layout, without a transpose.

    cos and sin are from `RoPE.cos_sin`. If weight is None, skips the norm.
    """


@_operation
def flash_attention(
    query: mx.array,
    key: mx.array,
    value: mx.array,
    scale: float | None = None,
    causal: bool = False,
    mask: mx.array | None = None,
    context_lens: mx.array | None = None,
) -> mx.array:
    """Attention over contiguous keys, tile by tile, without materializing the scores."""


@_operation
def paged_attention(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: mx.array,
    context_lens: mx.array,
    scale: float | None = None,
    causal: bool = True,
    window: int = 0,
) -> mx.array:
    """Attention over keys and values in pages, located through a block table."""


@_operation
def paged_attention_varlen(
    query: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    cu_seqlens_q: mx.array,
    context_lens: mx.array,
    block_table: mx.array,
    scale: float | None = None,
    window: int = 0,
) -> mx.array:
    """Paged attention over a ragged batch: a different number of queries per sequence."""


@_operation
def cache_write(
    buffer: mx.array, tokens: mx.array, offsets: list[int] | mx.array, overwrite: bool = False
) -> mx.array:
    """Writes new keys or values to a cache's buffer.

    Writes in place if nothing else references the buffer: `buffer = cache_write(buffer, …)`.
    """


@_operation
def paged_cache_write(
    pages: mx.array, tokens: mx.array, slots: mx.array, overwrite: bool = False
) -> mx.array:
    """Writes each token's keys or values to its slot: page_id · page_size + position in page."""


@_operation
def causal_conv1d(
    x: mx.array,
    weight: mx.array,
    conv_states: mx.array,
    cu_seqlens: mx.array,
    read_slots: mx.array,
    write_slots: mx.array,
    overwrite: bool = False,
) -> tuple[mx.array, mx.array]:
    """Causal depthwise convolution, then SiLU; reads and writes states by slot."""


@_operation
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
) -> tuple[mx.array, mx.array]:
    """Gated delta rule over a ragged batch; reads and writes recurrent states by slot."""


@_operation
def gated_rms_norm(o: mx.array, z: mx.array, weight: mx.array, eps: float) -> mx.array:
    """Computes RMSNorm of o per head, times silu(z)."""


@_operation
def sigmoid_gate(x: mx.array, gate: mx.array) -> mx.array:
    """Computes x · sigmoid(gate)."""
