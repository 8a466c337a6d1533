"""Page storage: KV pages, recurrent states, and steps over all layers.

Unlike in a `TinyKvPagedPool`, a page id refers to the same page in every layer's arrays, so layers
share block tables. The engine allocates page ids and state slots; this module holds the memory.

All pages have the same number of bytes, so one free list serves all layers. A *block* is
`page_size` tokens of a sequence; its keys and values take `block_pages` pages with consecutive
entries in the request's page ids. A *table* is a set of layers with the same window and row size,
at most one per array, that use the same page ids of each block in different arrays. For six
layers, four with a window:

    array          0         1            pages of a block    freed before the window
    window table   layer 0   layer 1      1                   yes
    window table   layer 3   layer 4      1                   yes
    full table     layer 2   layer 5      2                   no

Full-attention rows are twice as long in this example, so each page holds half a block.

A step's layers are a pure function of arrays, `PlannedLayers`, which can be captured as one node of
MLX's graph (`kernels/graph_capture.py`).
"""

import math
import sys
from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

import mlx.core as mx

from .. import kernels
from ..kernels.graph_capture import CapturedFunction
from .layer_cache import LayerCacheView
from .step_plan import AttentionMetadata, LayerInputs, RaggedBatch, StepPlan

MAX_PADDING = 1 / 8  # maximum unused fraction of a block's memory


class LayerKv(NamedTuple):
    """One layer's keys or values: `num_heads` rows of `row_width` elements per token."""

    window: int  # number of most recent tokens that a query attends to; 0 for all
    num_heads: int
    row_width: int

    @property
    def size(self) -> int:
        return self.num_heads * self.row_width


class KvTable(NamedTuple):
    """Layers that share `num_pages` pages of each block, from index `first` in the block."""

    window: int
    first: int
    num_pages: int


@dataclass(frozen=True)
class KvLayout:
    """Tables and arrays of a model's layers.

    Attributes:
        layers: the layers that own keys and values.
        tables: full attention first, then by decreasing window.
        table_of, array_of: each layer's table and array, by index.
        array_elements: elements per page in each key array, and in each value array.
        block_pages: pages of a block.
    """

    page_size: int
    layers: tuple[LayerKv, ...]
    tables: tuple[KvTable, ...]
    table_of: tuple[int, ...]
    array_of: tuple[int, ...]
    array_elements: tuple[int, ...]
    block_pages: int

    @classmethod
    def one_table(
        cls, layers: Sequence[LayerKv], page_size: int, block_pages: int = 1
    ) -> "KvLayout":
        """Layout with one array per layer; all layers use the first page id of each block."""
        indices = tuple(range(len(layers)))
        sizes = tuple(page_size * layer.size for layer in layers)
        table = KvTable(_longest_window(layers), 0, 1)
        zeros = (0,) * len(layers)
        return cls(page_size, tuple(layers), (table,), zeros, indices, sizes, block_pages)

    @classmethod
    def from_layers(cls, layers: Sequence[LayerKv], page_size: int) -> "KvLayout":
        """Layout with separate tables for layers that differ in window or row size.

        Falls back to one table if pages of equal size are impossible, i.e. if `page_size` is not
        divisible by each row size over the greatest common divisor of all row sizes.
        """
        kinds = sorted(set(layers), key=lambda kind: (kind.window != 0, -kind.window, kind))
        unit = math.gcd(*(kind.size for kind in kinds))
        if len(kinds) == 1 or any(page_size % (kind.size // unit) for kind in kinds):
            return cls.one_table(layers, page_size)
        num_arrays = _num_arrays([(layers.count(kind), kind.size) for kind in kinds])
        tables: list[KvTable] = []
        table_of, array_of = [-1] * len(layers), [-1] * len(layers)
        block_pages = 0
        for kind in kinds:
            members = [index for index, layer in enumerate(layers) if layer == kind]
            for number, index in enumerate(members):
                if number % num_arrays == 0:
                    tables.append(KvTable(kind.window, block_pages, kind.size // unit))
                    block_pages += kind.size // unit
                table_of[index], array_of[index] = len(tables) - 1, number % num_arrays
        sizes = (page_size * unit,) * num_arrays
        assigned = tuple(table_of), tuple(array_of)
        return cls(page_size, tuple(layers), tuple(tables), *assigned, sizes, block_pages)

    @property
    def page_elements(self) -> int:
        """Number of elements of a page in all arrays, keys and values."""
        return 2 * sum(self.array_elements)

    @property
    def groups(self) -> list[tuple[int, int]]:
        """(window, pages of a block) for each window, in the order of the tables."""
        by_window = groupby(self.tables, key=lambda table: table.window)
        return [(window, sum(t.num_pages for t in tables)) for window, tables in by_window]

    @property
    def ignores_windows(self) -> bool:
        """Whether layers with a window share a table with layers that attend to more tokens."""
        return any(
            layer.window != self.tables[table].window
            for layer, table in zip(self.layers, self.table_of, strict=True)
        )

    def pages_of(self, page_ids: array, table: KvTable) -> array:
        """Selects a table's page ids from the page ids of complete blocks."""
        step, count = self.block_pages, table.num_pages
        if count == 1:
            return page_ids if step == 1 else page_ids[table.first :: step]
        pages = array("i", bytes(4 * count * (len(page_ids) // step)))
        for index in range(count):
            pages[index::count] = page_ids[table.first + index :: step]
        return pages

    def page_shape(self, layer: int) -> tuple[int, int, int]:
        """H×T×row_width of a layer's page, for T tokens per page."""
        kind = self.layers[layer]
        tokens = self.page_size // self.tables[self.table_of[layer]].num_pages
        return kind.num_heads, tokens, kind.row_width


def _longest_window(layers: Sequence[LayerKv]) -> int:
    """The longest window; 0 if any layer attends to all tokens."""
    windows = [layer.window for layer in layers]
    return max(windows, default=0) if all(windows) else 0


def _num_arrays(kinds: Sequence[tuple[int, int]]) -> int:
    """Largest number of arrays within `MAX_PADDING`, for (layers, row size) of each kind."""
    used = sum(count * size for count, size in kinds)
    for number in range(min(count for count, _ in kinds), 1, -1):
        total = sum(-(-count // number) * number * size for count, size in kinds)
        if total - used <= MAX_PADDING * total:
            return number
    return 1


@dataclass(frozen=True)
class StateShape:
    conv_state: tuple[int, int]  # (K−1)×C in `dtype`: last inputs, for K taps and C channels
    state: tuple[int, int, int]  # H_v×D_k×D_v float32: value heads, key and value size
    dtype: mx.Dtype

    @property
    def nbytes(self) -> int:
        return (
            math.prod(self.conv_state) * self.dtype.size + math.prod(self.state) * mx.float32.size
        )


class StateStorage:
    """State slots of the linear-attention layers; a slot uses memory once it is written.

    Args:
        layers: indices of the model's linear-attention layers, in ascending order.

    Attributes:
        conv_states, states: an S×(K−1)×C and an S×H_v×D_k×D_v array per layer, for S slots (see
            `StateShape`). Written in place; do not keep references to the arrays.
        resident: slots with physical memory.

    Raises:
        ValueError: `num_slots` is below 1.
    """

    def __init__(self, layers: Sequence[int], num_slots: int, shape: StateShape):
        if num_slots < 1:
            raise ValueError(f"StateStorage: num_slots must be at least 1, got {num_slots}.")
        self.layers = tuple(layers)
        self.num_slots = num_slots
        self.conv_states = [
            kernels.reserve_zeros((num_slots, *shape.conv_state), shape.dtype) for _ in layers
        ]
        self.states = [kernels.reserve_zeros((num_slots, *shape.state), mx.float32) for _ in layers]
        self.resident: set[int] = set()
        self._slot_bytes = len(layers) * shape.nbytes

    @property
    def arrays(self) -> list[mx.array]:
        """Convolution states of all layers, then recurrent states, indexed by slot."""
        return [*self.conv_states, *self.states]

    @property
    def nbytes(self) -> int:
        """Bytes of physical memory of all layers' slots."""
        return len(self.resident) * self._slot_bytes


def release_rows(arrays: Sequence[mx.array], resident: set[int], free: Collection[int]) -> None:
    """Returns the physical memory of `free` rows and removes them from `resident`.

    A no-op on macOS and on a GPU, where the memory stays reserved.
    """
    if sys.platform == "linux" and kernels.computes_on_cpu():
        rows = sorted(resident.intersection(free))
        mx.eval(arrays)  # the last step's writes may be pending
        for each in arrays:
            kernels.release_rows(each, rows)
        resident.difference_update(rows)


def _with_pages(pages: mx.array, page_ids: Sequence[int], rows: mx.array) -> mx.array:
    """Writes N×bytes uint8 to N pages, in place even if another array shares their memory."""
    dtype, N = pages.dtype, len(page_ids)
    if dtype == mx.int8:  # `paged_cache_write` would quantize the rows again
        pages = mx.view(pages, mx.bfloat16)
    _, H, tokens, D = pages.shape
    written = mx.view(mx.contiguous(rows), pages.dtype).reshape(N, H, tokens, D)
    slots = mx.array(list(page_ids), mx.int32)[:, None] * tokens + mx.arange(tokens, dtype=mx.int32)
    return mx.view(kernels.paged_cache_write(pages, written, slots, overwrite=True), dtype)


class PagedStorage:
    """Key and value pages of each layer; a page uses physical memory once it is written.

    All pages are reserved at once, so the arrays never grow or move. Only `release` returns memory,
    so a page allocator should prefer pages in `resident`.

    Args:
        layout: with row widths as `kv_row_width` computes them.
        states: state slots of linear-attention layers, if any.

    Attributes:
        key_pages, value_pages: one num_pages×H×T×D array per layer with pages, for T tokens per
            page. Layers of different tables may share an array, but never a page. Written in place;
            do not keep references to the arrays.
        resident: pages with physical memory.

    Raises:
        ValueError: `num_pages` or the page size is below 1.
    """

    def __init__(
        self, layout: KvLayout, num_pages: int, dtype: mx.Dtype, states: StateStorage | None = None
    ):
        if num_pages < 1 or layout.page_size < 1:
            raise ValueError(
                "PagedStorage: num_pages and page_size must be at least 1, got "
                f"{num_pages} and {layout.page_size}."
            )
        self.layout = layout
        self.num_pages = num_pages
        self.key_pages, self.value_pages = self._reserve(dtype), self._reserve(dtype)
        self.states = states
        self.resident: set[int] = set()
        self._page_bytes = layout.page_elements * dtype.size

    def _reserve(self, dtype: mx.Dtype) -> list[mx.array]:
        """Reserves the layout's arrays; returns each layer's view of one of them."""
        layout, P = self.layout, self.num_pages
        arrays = [kernels.reserve_zeros((P, size), dtype) for size in layout.array_elements]
        views = [
            arrays[index].reshape(P, *layout.page_shape(layer))
            for layer, index in enumerate(layout.array_of)
        ]
        mx.eval(views)
        return views

    @property
    def arrays(self) -> list[mx.array]:
        """Arrays to evaluate to materialize all writes."""
        pages, states = [*self.key_pages, *self.value_pages], self.states
        return pages if states is None else [*pages, *states.arrays]

    @property
    def nbytes(self) -> int:
        """Bytes of physical memory of all pages and state slots."""
        pages = len(self.resident) * self._page_bytes
        return pages if self.states is None else pages + self.states.nbytes

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all pages and state slots, with or without physical memory."""
        states = [] if self.states is None else self.states.arrays
        return self.num_pages * self._page_bytes + sum(array.nbytes for array in states)

    @property
    def page_arrays(self) -> list[mx.array]:
        """Arrays of all keys, then of all values; element i of each array is page i."""
        return [pages[layer] for pages, layer in self._views]

    @property
    def _views(self) -> list[tuple[list[mx.array], int]]:
        """One layer's view of each key array, then of each value array."""
        layers = {array: layer for layer, array in enumerate(self.layout.array_of)}.values()
        return [(pages, layer) for pages in (self.key_pages, self.value_pages) for layer in layers]

    def write_pages(self, page_ids: Sequence[int], rows: mx.array) -> None:
        """Overwrites N pages with N×bytes uint8, in the order of `page_arrays`."""
        self.resident.update(page_ids)
        start = 0
        for pages, layer in self._views:
            end = start + math.prod(pages[layer].shape[1:]) * pages[layer].dtype.size
            pages[layer] = _with_pages(pages[layer], page_ids, rows[:, start:end])
            start = end
        mx.eval(self.page_arrays)

    def populate(self, num_pages: int, num_slots: int) -> None:
        """Allocates physical memory for the first pages and state slots."""
        for pages in self.page_arrays:
            kernels.extension().populate_rows(pages, num_pages)
        self.resident.update(range(num_pages))
        if self.states is not None:
            for states in self.states.arrays:
                kernels.extension().populate_rows(states, num_slots)
            self.states.resident.update(range(num_slots))

    def release(self, pages: Collection[int], slots: Collection[int]) -> None:
        """Returns the physical memory of unused pages and state slots; see `release_rows`."""
        release_rows(self.page_arrays, self.resident, pages)
        if self.states is not None:
            release_rows(self.states.arrays, self.states.resident, slots)

    def plan(self, batch: RaggedBatch) -> StepPlan:
        """Plans a step over a ragged batch with slots for each of the layout's tables."""
        layout = self.layout
        for table, slots in zip(layout.tables, batch.slots, strict=True):
            tokens = layout.page_size // table.num_pages  # per page
            self.resident.update(slot // tokens for slot in slots)
        pairs = list(zip(self.key_pages, self.value_pages, strict=True))
        states = self.states
        if states is not None:
            assert batch.attention_metadata.state_read_slots is not None
            states.resident |= batch.written_states
            for layer, conv, state in zip(
                states.layers, states.conv_states, states.states, strict=True
            ):
                pairs.insert(layer, (conv, state))

        def commit(buffers: list[mx.array]) -> None:
            pairs = list(zip(buffers[::2], buffers[1::2], strict=True))
            if states is not None:
                recurrent = [pairs.pop(layer) for layer in reversed(states.layers)][::-1]
                states.conv_states, states.states = map(list, zip(*recurrent, strict=True))
            self.key_pages, self.value_pages = map(list, zip(*pairs, strict=True))

        arrays = [array for pair in pairs for array in pair]
        tables = layout.table_of if len(layout.tables) > 1 else ()
        return StepPlan(batch.attention_metadata, arrays, commit, tables=tables)


# (x B×L×E, `LayerInputs`, one cache or view per layer) -> (x, update), both B×L×E
Layers = Callable[..., tuple[mx.array, mx.array]]


class PlannedLayers:
    """Runs a model's layers, given as a function, with a step plan.

    Args:
        num_caches: number of layers whose caches the plan updates.
    """

    def __init__(self, layers: Layers, num_caches: int):
        self._layers = layers
        self._num_caches = num_caches
        # Keyed by (names of the metadata arrays, each layer's block table).
        self._functions: dict[tuple[tuple[str, ...], tuple[int, ...]], Callable[..., Any]] = {}

    def __call__(
        self, x: mx.array, inputs: LayerInputs, step_plan: StepPlan
    ) -> tuple[mx.array, mx.array]:
        """Runs the layers and commits the plan; rolls it back on an error."""
        metadata = step_plan.attention_metadata
        try:
            function = self._function_for(metadata.names, step_plan.tables, len(inputs))
            x, update, *buffers = function(x, *inputs, *metadata.arrays, *step_plan.buffers)
        except BaseException:
            step_plan.rollback()
            raise
        step_plan.commit(buffers)
        return x, update

    def _function_for(
        self, names: tuple[str, ...], tables: tuple[int, ...], num_inputs: int
    ) -> Callable[..., Any]:
        key = names, tables
        if key not in self._functions:
            # A ragged batch may be a single short prompt, so it is captured on the second call.
            # Decode steps are captured on the first: if layers share pages, an uncaptured layer
            # copies the pages that the previous layer's attention has yet to read.
            self._functions[key] = CapturedFunction(
                partial(self._run, *key, num_inputs), on_first_call="cu_seqlens_q" not in names
            )
        return self._functions[key]

    def _run(
        self,
        names: tuple[str, ...],
        tables: tuple[int, ...],
        num_inputs: int,
        x: mx.array,
        *arrays: mx.array,
    ) -> tuple[mx.array, ...]:
        inputs, rest = arrays[:num_inputs], arrays[num_inputs:]
        attention_metadata = AttentionMetadata(**dict(zip(names, rest, strict=False)))
        buffers = list(rest[len(names) :])
        views = layer_cache_views(attention_metadata, buffers, self._num_caches, tables)
        return *self._layers(x, inputs, views), *buffers


def layer_cache_views(
    attention_metadata: AttentionMetadata,
    buffers: list[mx.array],
    num_layers: int,
    tables: Sequence[int] = (),
) -> list[LayerCacheView]:
    """Creates one cache view per layer; the views modify `buffers`."""
    is_shared = len(buffers) == 2
    indices = tables or range(num_layers)
    by_index = {index: attention_metadata.for_layer(index) for index in indices}
    return [
        LayerCacheView(buffers, 0 if is_shared else 2 * layer, by_index[index])
        for layer, index in enumerate(indices)
    ]
