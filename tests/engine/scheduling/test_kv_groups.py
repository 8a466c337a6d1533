"""KV cache groups: page layouts, memory of long requests, prefix cache by group."""

from unittest import mock

import pytest

from tests.engine.scheduler_harness import add, scheduler, serve, step
from tiny_llm.engine.execution.kv_memory import KvMemory, plan_kv_memory
from tiny_llm.engine.scheduling.config import MIN_STATE_SLOTS, KvGroup
from tiny_llm.kv_storage.int8_rows import kv_row_width
from tiny_llm.kv_storage.paged_storage import KvLayout, KvTable, LayerKv

PAGE, STEP, TOKENS = 16, 512, 16_384


def mixed(num_layers: int, period: int, window: LayerKv, full: LayerKv) -> list[LayerKv]:
    """Layers of which every `period`-th has full attention."""
    return [window if (index + 1) % period else full for index in range(num_layers)]


# Shapes of well-known models: layers that own keys and values, with H rows of D elements.
GPT_OSS = mixed(24, 2, LayerKv(128, 8, 64), LayerKv(0, 8, 64))
GEMMA_4_E4B = mixed(24, 6, LayerKv(512, 2, 256), LayerKv(0, 2, 512))
GEMMA_4_26B = mixed(30, 6, LayerKv(1024, 8, 256), LayerKv(0, 2, 512))
SMALL_ROW, LARGE_ROW = (kv_row_width(head_dim, 256, "int8") for head_dim in (256, 512))
GEMMA_4_INT8 = mixed(24, 6, LayerKv(512, 2, SMALL_ROW), LayerKv(0, 2, LARGE_ROW))
GEMMA_3_1B = mixed(26, 6, LayerKv(512, 1, 256), LayerKv(0, 1, 256))


class Model:
    """Sizes of a model without recurrent state, for `plan_kv_memory`."""

    max_seq_len, state_bytes, kv_element_bytes = 2**17, 0, 2

    def __init__(self, layers):
        self.kv_layers = layers


def memory_of(layers) -> KvMemory:
    return plan_kv_memory([Model(layers)], 2**40, PAGE, 1, TOKENS + 64, None, STEP)


def test_default_memory_is_enough_for_all_requests_or_three_quarters_of_the_available():
    model = Model([LayerKv(0, 8, 64)] * 24)
    model.state_bytes = 10**6
    page_bytes = 2 * 24 * 8 * 64 * 2 * PAGE
    for available, num_bytes in (
        (2**40, 8 * 4096 // PAGE * page_bytes + (2 * 8 + 16) * 10**6),
        (10**9, 750_000_000),
        (10**6, page_bytes * (1 + -(-MIN_STATE_SLOTS * 10**6 // page_bytes))),  # the minimum
    ):
        memory = plan_kv_memory([model], available, PAGE, 8, 4096, None, STEP)
        assert memory.num_bytes == num_bytes, available
        assert memory.reason.startswith("enough for 8" if available == 2**40 else "3/4 of the")


@pytest.mark.parametrize(
    ("layers", "arrays", "tables", "block_pages"),
    [
        (GPT_OSS, 12, 2, 2),
        (GEMMA_4_E4B, 4, 6, 7),  # the page of a full-attention table holds half a block
        (GEMMA_4_26B, 5, 6, 11),  # that of a window table holds half a block
        (GEMMA_3_1B, 4, 7, 7),  # the last of six window tables has two layers instead of four
        (mixed(34, 6, LayerKv(9, 1, 8), LayerKv(0, 1, 8)), 5, 7, 7),
        (GEMMA_4_INT8, 4, 6, 7),
        (mixed(12, 3, LayerKv(8, 1, 260), LayerKv(0, 1, 516)), 12, 1, 1),  # no common page size
        ([LayerKv(8, 1, 16)] * 3, 3, 1, 1),
    ],
)
def test_layouts(layers, arrays, tables, block_pages):
    layout = KvLayout.from_layers(layers, PAGE)
    sizes = len(set(layout.array_of)), len(layout.tables), layout.block_pages
    assert sizes == (arrays, tables, block_pages)
    assert len(layout.array_elements) == arrays
    assert layout.ignores_windows == (tables == 1 and len(set(layers)) > 1)
    # No two layers have the same page of the same array.
    assert len(set(zip(layout.table_of, layout.array_of, strict=True))) == len(layers)
    for index in range(len(layers)):
        heads, tokens, width = layout.page_shape(index)
        assert heads * tokens * width == layout.array_elements[layout.array_of[index]]
        assert tokens * layout.tables[layout.table_of[index]].num_pages == PAGE
    used = 2 * PAGE * sum(layer.size for layer in layers)
    assert used <= layout.block_pages * layout.page_elements <= used * 8 / 7


def test_full_attention_is_the_first_group():
    layers = [LayerKv(4, 2, 8), LayerKv(0, 2, 8), LayerKv(9, 1, 8), LayerKv(0, 1, 8)]
    layout = KvLayout.from_layers(layers, 4)
    assert [table.window for table in layout.tables] == [0, 0, 9, 4]
    assert layout.tables[0] == KvTable(0, 0, 1)
    assert layout.tables[1] == KvTable(0, 1, 2)
    assert layout.groups == [(0, 3), (9, 1), (4, 2)]


@pytest.mark.parametrize("layers", [GPT_OSS, GEMMA_4_E4B, GEMMA_4_26B, GEMMA_4_INT8, GEMMA_3_1B])
@pytest.mark.parametrize("sharing", [False, True])
def test_memory_of_a_long_request(layers, sharing):
    """Layers with a window keep the window and a step; a full-attention layer keeps everything."""
    memory = memory_of(layers)
    page_bytes = memory.num_bytes // memory.num_pages
    used = []
    engine = scheduler(
        lambda event: used.append(event["pages"]["used"]) if "pages" in event else None,
        num_pages=memory.num_pages,
        page_size=PAGE,
        max_num_batched_tokens=STEP,
        max_num_seqs=1,
        max_seq_len=memory.max_seq_len,
        enable_prefix_caching=sharing,
        kv_groups=memory.groups,
    )
    serve(engine, "a", TOKENS - 30, 30)

    def formula(extra: int) -> int:
        """Bytes of all tokens, or of a window and `extra` tokens, in each layer."""
        return sum(
            2 * Model.kv_element_bytes * size * (window + extra if window else TOKENS)
            for window, size in ((layer.window, layer.size) for layer in layers)
        )

    assert formula(STEP) < max(used) * page_bytes < formula(STEP) * 1.1
    assert formula(0) < used[-1] * page_bytes < formula(0) * 1.1
    with mock.patch.object(KvLayout, "from_layers", KvLayout.one_table):
        everything = memory_of(layers)
    assert max(used) * page_bytes < 0.55 * everything.num_bytes


def test_blocks_are_cached_by_group():
    groups = (KvGroup(), KvGroup(window=5, num_pages=2))
    engine = scheduler(num_pages=60, max_num_batched_tokens=8, kv_groups=groups)
    serve(engine, "a", 29, 3)
    cache = engine.pages.cache
    assert cache.num_pages == 7 * 3
    # The blocks before the window of token 28 or later are evicted first.
    assert cache.evict(8) == 8
    path = cache.match(range(29))
    assert len(path) == 7
    assert [node.pages[1] >= 0 for node in path] == [False] * 4 + [True] * 3
    assert all(node.page >= 0 for node in path)
    assert cache.match(range(20)) == []  # without pages in its window
    again = add(engine, "b", 29, 3)
    assert [chunk[1] for chunk in step(engine)] == [28]
    assert again.num_cached_tokens == 28
    # Evicting a block's pages of the first group evicts all its pages.
    engine.finish(again, "abort")
    while cache.num_pages:
        cache.evict(1)
        engine.check_integrity()
    assert not cache.root.children
    assert engine.pages.num_free == 60


def test_a_hit_computes_missing_window_pages_again():
    groups = (KvGroup(), KvGroup(window=5))
    engine = scheduler(num_pages=40, max_num_batched_tokens=8, kv_groups=groups)
    serve(engine, "a", 21, 3)
    engine.pages.cache.evict(3)
    expected = engine.pages.cache.num_pages
    assert serve(engine, "b", 21, 3).num_cached_tokens == 20
    assert serve(engine, "c", 13, 1).num_cached_tokens == 0
    # Its window pages join the existing nodes; its pages of the first group are duplicates.
    assert engine.pages.cache.num_pages == expected + 3
