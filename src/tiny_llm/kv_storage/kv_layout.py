"""KV layout: how layers with different windows and row sizes share pages.

All pages have equal bytes, so one free list serves all layers. A *block* is `page_size` tokens of
a sequence; its keys and values take `block_pages` pages with consecutive entries in the request's
page ids. A *table* is a set of layers with the same window and row size, at most one per array,
that use the same page ids of each block in different arrays. For six layers, four with a window:

    array          0         1            pages of a block    freed before the window
    window table   layer 0   layer 1      1                   yes
    window table   layer 3   layer 4      1                   yes
    full table     layer 2   layer 5      2                   no

Full-attention rows are twice as long in this example, so each page holds half a block.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

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

        Falls back to one table if pages of equal bytes are impossible, i.e. if `page_size` is not
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
