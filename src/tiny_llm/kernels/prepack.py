"""Weight prepacking: quantized weights in the layouts of the CPU kernels.

The CPU's vector kernels multiply one 32-bit element (eight 4-bit weights) from each of many rows at
once: 16 rows on AVX2, 64 on AVX-512. In MLX's row-major layout, those elements are a row apart.
*Interleaved* rows are stored column by column, so elements that are multiplied together are
adjacent. Both layouts give bit-identical results. An array's shape tells its layout: row-major O×W
(O rows of W elements), interleaved (O/R)×W×R, where R is the number of rows that the kernels read
together. Matrices of X experts have a leading axis X.

Weights are *symmetric* if every bias is −2^(bits − 1) · scale, as in GGUF's Q4_0, Q6_K and Q8_0.
The kernels compute these biases, so interleaved ones are empty: (O/R)×0×R. With 4 bits in groups of
32, that saves a tenth of the memory.

MXFP4 weights have 4 bits (E2M1: a sign, two exponent bits and one mantissa bit: ±0, 0.5, 1, 1.5, 2,
3, 4 or 6) and a scale per group of 32. MLX checkpoints store scales as E8M0: an 8-bit e for
2^(e − 127). The kernels read them as bfloat16, whose exponent has the same 8 bits. Source: Open
Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0 (2023).

`load_weights` prepacks while reading. `prepack_model` prepacks models loaded by other means, when a
Week 2, Week 3 or engine model is built from them.
"""

import copy
import functools
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import mlx.core as mx
from mlx.utils import tree_flatten

from . import extension, map_file, prepack_rows, supports_quantization

CACHE_LINE_BYTES = 64
QUANTIZED_ARRAYS = ("weight", "scales", "biases")
E2M1 = "e2m1"  # quantization mode of MXFP4 layers with bfloat16 instead of E8M0 scales
# bfloat16 has seven mantissa bits below its exponent. Exponent 0 is subnormal, 2⁻¹²⁶ · 0.mantissa,
# so 2⁻¹²⁷ needs a nonzero mantissa. Exponent 255 with a nonzero mantissa is NaN, like E8M0's 255.
MANTISSA_BITS = 7
TWO_TO_MINUS_127 = 0x0040
BFLOAT16_NAN = 0x7FC0

T = TypeVar("T")
# Keyed by `id(array)`. The weak reference detects that the array was deleted and its id reused.
WeakIdMap: TypeAlias = dict[int, tuple[weakref.ref[mx.array], T]]


def prepack_weight(matrix: mx.array, rows: int) -> mx.array:
    """Interleaves packed weights, scales or biases: O×W -> (O/R)×W×R.

    MLX reference for the extension's prepacking at load time.

    Args:
        rows: R, from `kernels.prepack_rows()`.

    Raises:
        ValueError: O is not a multiple of R.
    """
    O, W = matrix.shape
    if O % rows != 0:
        raise ValueError(f"prepack_weight: expected a multiple of {rows} rows, got {O}.")
    # [task 4.3.1 prepack]
    return mx.contiguous(matrix.reshape(O // rows, rows, W).swapaxes(1, 2))
    # [/task 4.3.1 prepack]


def to_row_major(matrix: mx.array) -> mx.array:
    """Undoes `prepack_weight`: N..×(O/R)×W×R -> N..×O×W, evaluable on any thread."""
    *N, blocks, W, rows = matrix.shape
    stream = _any_thread_stream()
    return mx.reshape(
        mx.swapaxes(matrix, -1, -2, stream=stream), (*N, blocks * rows, W), stream=stream
    )


def is_row_major(mlx_layer: Any) -> bool:
    return mlx_layer.weight.shape[:-1] == mlx_layer.scales.shape[:-1]


def is_lookup_table(mlx_layer: Any) -> bool:
    """Whether a layer is only looked up in, so it stays in its file and its format."""
    return bool(getattr(mlx_layer, "is_lookup_table", False))


def row_major_layer(mlx_layer: Any) -> Any:
    """Returns a layer in MLX's layout: row-major, with E8M0 scales if MXFP4."""
    if not hasattr(mlx_layer, "scales"):
        return mlx_layer
    is_floating = getattr(mlx_layer, "mode", "affine") == E2M1
    if is_row_major(mlx_layer) and not is_floating:
        return mlx_layer
    layer = copy.copy(mlx_layer)
    if not is_row_major(mlx_layer):
        _restore_arrays(layer, mlx_layer)
    if is_floating:
        layer.scales, layer.mode = bfloat16_to_e8m0(layer.scales), "mxfp4"
    return layer


def is_kernel_supported(mlx_layer: Any) -> bool:
    return getattr(mlx_layer, "mode", "affine") in ("affine", E2M1) and supports_quantization(
        mlx_layer.bits, mlx_layer.group_size, mlx_layer.scales.dtype
    )


def prepack_model(mlx_model: Any) -> Any:
    """Copies a model into the weight layout that this machine's kernels read.

    Each of the given model's arrays becomes a lazy inverse of its prepacked copy, and its memory is
    released. Evaluating the given model again recreates its row-major weights, in addition to the
    prepacked ones. Returns `mlx_model` itself if no layer needs prepacking.
    """
    layers = prepackable_layers(mlx_model)
    if not layers:
        return mlx_model
    memory = PrepackedWeights(mlx_model)
    prepacked_model = copy_tree(mlx_model)
    for layer, prepacked in zip(layers, prepackable_layers(prepacked_model), strict=True):
        memory.prepack_layers(prepacked)
        _restore_arrays(layer, prepacked)
    return prepacked_model


def _restore_arrays(layer: Any, prepacked: Any) -> None:
    """Sets a layer's arrays to the row-major arrays of its prepacked copy."""
    for name in _array_names(prepacked):
        setattr(layer, name, to_row_major(prepacked[name]))
    if "biases" in prepacked and prepacked.biases.size == 0:
        zero_point = 2 ** (layer.bits - 1)
        layer.biases = mx.multiply(layer.scales, -zero_point, stream=_any_thread_stream())


def _is_symmetric(layer: Any) -> bool:
    for part in slice(1), slice(None):  # the first pack rules out most asymmetric weights
        scales, biases = layer.scales[part], layer.biases[part]
        if not mx.array_equal(biases, scales * -(2 ** (layer.bits - 1))):
            return False
    return True


def _lookup(mapping: WeakIdMap[T], array: mx.array) -> T | None:
    reference, value = mapping.get(id(array), (None, None))
    return value if reference is not None and reference() is array else None


class WeightLocations:
    """File locations of a model's lazy arrays, which are weakly referenced."""

    def __init__(self) -> None:
        self._locations: WeakIdMap[tuple[Path, int, bool]] = {}
        self._readers: WeakIdMap[Callable[[], mx.array]] = {}

    def __deepcopy__(self, _: Any) -> "WeightLocations":
        return self  # copies of a model share its arrays

    def add(self, array: mx.array, file: Path, begin: int, limit_readahead: bool = False) -> None:
        """Registers a lazy array stored row-major at byte offset `begin` of a file.

        `limit_readahead` disables readahead past the array, because only other ranks read the bytes
        that follow a shard.
        """
        self._locations[id(array)] = weakref.ref(array), (file, begin, limit_readahead)

    def add_reader(self, array: mx.array, read: Callable[[], mx.array]) -> None:
        """Registers a function that reads an array with less I/O than evaluation."""
        self._readers[id(array)] = weakref.ref(array), read

    def read(self, array: mx.array) -> mx.array:
        read = _lookup(self._readers, array)
        return array if read is None else read()

    def materialize(self, module: Any) -> None:
        for part in module.modules():
            for name, array in list(part.items()):
                if isinstance(array, mx.array):
                    setattr(part, name, self.read(array))

    def map_tables(self, module: Any) -> None:
        """Maps the arrays of lookup tables into memory, where supported."""
        for layer in filter(is_lookup_table, module.modules()):
            for name, array in list(layer.items()):
                location = self.location_of(array) if isinstance(array, mx.array) else None
                mapped = None if location is None else map_file(array, *location[:2])
                if mapped is not None:
                    setattr(layer, name, mapped)

    def location_of(self, array: mx.array) -> tuple[Path, int, bool] | None:
        return _lookup(self._locations, array)


class PrepackedWeights:
    """Prepacks a model's layers into one allocation of huge pages.

    Only the extension can use prepacked layers. Layers that the kernels do not support stay
    unchanged, and so do all layers on machines whose kernels read row-major weights. To limit peak
    memory, lazy weights with a known file location are read a few rows at a time.
    """

    def __init__(self, model: Any, weight_locations: WeightLocations | None = None):
        self._rows = prepack_rows()
        self._locations = weight_locations or WeightLocations()
        layers = prepackable_layers(model)
        nbytes = sum(_aligned_nbytes(x[name]) for x in layers for name in _array_names(x))
        self._memory = extension().huge_pages(nbytes) if nbytes else None
        self._used = 0  # bytes of `_memory` in use

    def prepack_layers(self, module: Any) -> None:
        """Prepacks quantized layers of the model or part of it; call once per layer.

        Copies one array at a time, so that at most one is in memory twice.
        """
        for layer in prepackable_layers(module):
            for name in _array_names(layer):
                setattr(layer, name, self._interleave(layer[name]))
            reads_all_biases = bool(os.environ.get("TINY_LLM_MATMUL"))  # a kernel of Week 4
            if "biases" in layer and not reads_all_biases and _is_symmetric(layer):
                self._used -= _aligned_nbytes(layer.biases)
                layer.biases = layer.biases[..., :0, :]
                mx.eval(layer.biases)  # other threads cannot evaluate this thread's graphs

    def _interleave(self, matrix: mx.array) -> mx.array:
        """Interleaves N..×O×W to N..×(O/R)×W×R, with the N.. experts as one matrix."""
        *N, O, W = matrix.shape
        tall, target = matrix.reshape(-1, W), (self._rows, self._memory, self._used)
        location = self._locations.location_of(matrix)
        if location is None:
            rows = self._locations.read(matrix).reshape(-1, W)
            packed = extension().prepack_weight(rows, *target)
        else:
            file, begin, limit_readahead = location
            packed = extension().prepack_weight_from_file(
                tall, str(file), begin, *target, limit_readahead
            )
        self._used += _aligned_nbytes(matrix)
        return packed.reshape(*N, O // self._rows, W, self._rows)


def prepackable_layers(module: Any) -> list[Any]:
    """Returns a module's row-major layers that the kernels read interleaved.

    None in other objects with the attributes of `mlx_lm`'s layers, which stay row-major.
    """
    rows = prepack_rows()
    if rows == 0 or not hasattr(module, "modules"):
        return []
    return [
        layer
        for layer in module.modules()
        if "scales" in layer
        and is_kernel_supported(layer)
        and is_row_major(layer)
        and not is_lookup_table(layer)
        and layer.weight.shape[-2] % rows == 0
    ]


def _array_names(layer: Any) -> list[str]:
    return [name for name in QUANTIZED_ARRAYS if name in layer]


def copy_tree(mlx_model: Any) -> Any:
    """Copies the module tree; arrays are shared."""
    arrays: Any = tree_flatten(mlx_model)
    return copy.deepcopy(mlx_model, {id(array): array for _, array in arrays})


def _aligned_nbytes(array: mx.array) -> int:
    return -(-array.nbytes // CACHE_LINE_BYTES) * CACHE_LINE_BYTES


@functools.cache
def _any_thread_stream() -> mx.Stream:
    """Returns a stream for any thread; MLX's other streams belong to one thread."""
    return mx.new_thread_unsafe_stream(mx.cpu)


def e8m0_to_bfloat16(exponents: mx.array) -> mx.array:
    """Converts E8M0 scales to bfloat16: uint8 e -> 2^(e − 127)."""
    bits = exponents.astype(mx.uint16) << MANTISSA_BITS
    bits = mx.where(exponents == 0, mx.array(TWO_TO_MINUS_127, mx.uint16), bits)
    bits = mx.where(exponents == 255, mx.array(BFLOAT16_NAN, mx.uint16), bits)
    return bits.view(mx.bfloat16)


def bfloat16_to_e8m0(scales: mx.array) -> mx.array:
    """Converts scales from `e8m0_to_bfloat16` back to E8M0: bfloat16 -> uint8."""
    return (scales.view(mx.uint16) >> MANTISSA_BITS).astype(mx.uint8)
