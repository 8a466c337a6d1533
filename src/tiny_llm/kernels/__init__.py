"""Python bindings of the C++ extension's operations, loaded lazily.

No other module imports the extension. Week 1 does not need it. Each operation's contract (shapes,
dtypes, errors) is in its C++ header and shown by e.g. `help(tiny_llm_ext.rms_norm)`. Operations
raise ValueError if the contract is violated and UserError if the extension is not built.

Reading order: prepack, graph_capture, roofline.
"""

import functools
import importlib.util
import itertools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx

from ..errors import UserError

StreamOrDevice = mx.Stream | mx.Device | mx.DeviceType | None


@functools.cache
def extension() -> ModuleType:
    """Imports `tiny_llm_ext`; UserError if it is not built for this MLX version."""
    try:
        import tiny_llm_ext
    except ImportError as error:
        raise UserError(
            f"the C++ extension cannot be used ({error}); run `pdm run build-ext` to build it."
        ) from error
    return tiny_llm_ext


@functools.cache
def is_built() -> bool:
    try:
        extension()
    except UserError:
        return False
    return True


def check_num_threads() -> None:
    """Raises UserError if TINY_LLM_NUM_THREADS is invalid; a no-op without the extension."""
    if is_built():
        try:
            extension().num_threads()
        except ValueError as error:
            raise UserError(str(error)) from error


def supports_quantization(bits: int, group_size: int, dtype: mx.Dtype) -> bool:
    """Whether the kernels support weights of this format and scale dtype."""
    halves = (mx.float16, mx.bfloat16)
    return bits in (4, 8) and group_size in (32, 64, 128) and dtype in halves


def prepack_rows() -> int:
    """Number of weight rows that the CPU kernels interleave (see `prepack.py`).

    0 (row-major) on a GPU, on a CPU without vector kernels, or without the extension.
    """
    return extension().prepack_rows() if computes_on_cpu() and is_built() else 0


def _is_installed() -> bool:
    """Whether the extension's library file exists; does not import it."""
    package = importlib.util.find_spec("tiny_llm_ext")
    folders = (package.submodule_search_locations or []) if package else []
    return any(any(Path(folder).glob("_ext.*")) for folder in folders)


def _emulation_requested() -> bool:
    return bool(os.environ.get("TINY_LLM_EMULATED_METAL")) and not mx.metal.is_available()


def _default_stream() -> StreamOrDevice:
    if _emulation_requested():
        emulated = extension().emulated_gpu  # slow; only tests of the Metal kernels use it
        if emulated.is_requested():
            return emulated.attach(extension())
    return None if mx.metal.is_available() and _is_installed() else mx.cpu


def report_emulator_faults() -> bool:
    """Prints the emulated GPU's new faults to stderr; returns whether any exist."""
    return _emulation_requested() and bool(extension().emulated_gpu.report_faults())


# Default stream of the operations. Without Metal, this is the CPU, even if MLX's operations run on
# a GPU. MLX's arrays are in memory that CPU and GPU share, so none are copied.
_stream = _default_stream()


def computes_on_cpu() -> bool:
    """Whether both MLX and the extension run on the CPU by default."""
    return mx.default_device() == mx.cpu and (_stream is None or _stream == mx.cpu)


def runs_on_default_device() -> bool:
    """Whether the extension runs on MLX's default device; False for CUDA GPUs."""
    return is_built() and (_stream is None or mx.default_device() == mx.cpu)


def use_cpu() -> None:
    global _stream
    mx.set_default_device(mx.cpu)
    _stream = mx.cpu


def as_int32(numbers: Sequence[Any] | mx.array) -> mx.array:
    """Converts integers or rows of integers to int32; returns arrays unchanged."""
    return numbers if isinstance(numbers, mx.array) else mx.array(list(numbers), dtype=mx.int32)


def reserve_zeros(shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    """Returns zeros that use no physical memory until they are written."""
    return extension().reserve_zeros(shape, dtype)


class MappedRows:
    """Rows of a matrix in a file that is mapped into memory.

    Rows are bytes until they are looked up: MLX's files do not align their arrays.
    """

    def __init__(self, rows: mx.array, dtype: mx.Dtype):
        self.rows, self.dtype = rows, dtype

    def __deepcopy__(self, _: Any) -> "MappedRows":
        return self  # copies of a model share its arrays

    def __getitem__(self, ids: mx.array) -> mx.array:
        return self.rows[ids].view(self.dtype)


def map_file(x: mx.array, file: Path, begin: int) -> MappedRows | None:
    """Maps the rows of the lazy matrix `x` from byte `begin` of a file; None if not supported.

    Their pages are read when they are first accessed, and use no memory that the system cannot
    drop.
    """
    *N, columns = x.shape
    rows = extension().map_file((*N, columns * x.dtype.size), mx.uint8, str(file), begin)
    return None if rows is None else MappedRows(rows, x.dtype)


def release_rows(x: mx.array, rows: Sequence[int]) -> None:
    """Returns the physical memory of ascending rows of an array from `reserve_zeros`.

    The rows' contents are then undefined. A no-op on a GPU.
    """
    for _, run in itertools.groupby(enumerate(rows), lambda pair: pair[1] - pair[0]):
        indices = [row for _, row in run]
        extension().release_rows(x, indices[0], indices[-1] + 1)


def _operation(name: str) -> Callable[..., Any]:
    def operation(*arguments: Any, stream: StreamOrDevice = None, **options: Any) -> Any:
        chosen = _stream if stream is None else stream
        return getattr(extension(), name)(*arguments, **options, stream=chosen)

    operation.__name__ = operation.__qualname__ = name
    operation.__doc__ = f"See `help(tiny_llm_ext.{name})`."
    return operation


Operation = Callable[..., mx.array]
PairOperation = Callable[..., tuple[mx.array, mx.array]]

# Basic layers.
axpby: Operation = _operation("axpby")  # alpha · x + beta · y
argmax: Operation = _operation("argmax")  # index of the maximum in each row
add_bias: Operation = _operation("add_bias")
scaled_sum: Operation = _operation("scaled_sum")  # (x + y) · scale
rms_norm: Operation = _operation("rms_norm")
add_rms_norm: PairOperation = _operation("add_rms_norm")  # x + y and its RMSNorm
swiglu: Operation = _operation("swiglu")  # act(gate) · up: SiLU, tanh-GELU, gpt-oss's
sigmoid_gate: Operation = _operation("sigmoid_gate")  # x · sigmoid(gate)
# RMSNorm of each head, then RoPE. Writes the result in attention's memory layout, which saves a
# transpose. cos and sin are from `RoPE.cos_sin`. The norm is skipped if there is no weight.
qk_norm_rope: Operation = _operation("qk_norm_rope")

# Matrix multiplication.
matmul: Operation = _operation("matmul")  # a · bᵀ for plain matrices
quantized_matmul: Operation = _operation("quantized_matmul")  # a · bᵀ with a quantized b
# Multiplies one input by several matrices.
multi_quantized_matmul: Callable[..., list[mx.array]] = _operation("multi_quantized_matmul")
# Multiplies each row by its expert's matrix.
grouped_quantized_matmul: Operation = _operation("grouped_quantized_matmul")
# Looks up rows of a quantized table.
quantized_embedding: Operation = _operation("quantized_embedding")
add_lora: Operation = _operation("add_lora")  # adds the low-rank update of each row's adapter

# Mixture of experts.
topk_softmax: PairOperation = _operation("topk_softmax")  # top-k experts and their weights
weighted_sum: Operation = _operation("weighted_sum")  # sum of each token's expert outputs

# Attention. The cache writes update a buffer in place if the caller drops its reference to it, as
# in `buffer = cache_write(buffer, …)`.
flash_attention: Operation = _operation("flash_attention")  # tiled attention over dense buffers
paged_attention: Operation = _operation("paged_attention")
paged_attention_varlen: Operation = _operation("paged_attention_varlen")  # for ragged batches
cache_write: Operation = _operation("cache_write")  # writes to a cache's buffer
paged_cache_write: Operation = _operation("paged_cache_write")  # writes to pages

# Gated DeltaNet.
causal_conv1d: PairOperation = _operation("causal_conv1d")  # depthwise convolution
gated_delta_rule: PairOperation = _operation("gated_delta_rule")  # the recurrence
gated_rms_norm: Operation = _operation("gated_rms_norm")  # RMSNorm per head, times silu(z)
