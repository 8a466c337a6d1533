"""`CapturedFunction` in models: same results and errors as eager layers."""

import mlx.core as mx
import pytest

from tests.ops.captured_functions import node_names
from tests.support import assert_same_bits, tiny_model, tiny_quantized_model
from tiny_llm import BatchingKvCache, Qwen3ModelWeek2, Qwen3ModelWeek3
from tiny_llm.errors import OutOfPagesError
from tiny_llm.kv_cache.page_pool import TinyKvPagedPool
from tiny_llm.kv_storage.step_plan import RaggedBatch

# Graph capture supports only the CPU.
pytestmark = pytest.mark.usefixtures("on_cpu")


def ids_at(position: int, length: int, B: int = 1) -> mx.array:
    return mx.array([[3 + (position + i + b) * 7 % 90 for i in range(length)] for b in range(B)])


def run_alone(model):
    """One request: chunked prefill, steps of one and two tokens, rewinds."""
    cache, position, rows = model.create_kv_cache(), 0, []
    for length in (5, 1, 1, 1, 2, 2, 2, 40, 1, 1, -3, 1, 1, 25, 1, 1, 1):
        if length < 0:
            for layer in cache:
                layer.rewind(-length)
        else:
            rows.append(model(ids_at(position, length), position, cache))
            mx.eval(rows)
        position += length
    for layer in cache:
        layer.release()
    return mx.concatenate(rows, axis=1)


def run_batch(model):
    """Slots of different lengths, one idle; one request leaves, another joins."""
    batch = [BatchingKvCache(3, 128) for _ in range(model.num_hidden_layers)]
    offsets, rows = [0, 0, 0], []

    def add(slot, length):
        cache = model.create_kv_cache()
        mx.eval(model(ids_at(slot, length), 0, cache))
        for layer, mine in zip(batch, cache, strict=True):
            layer.add_request(mine, slot)
        offsets[slot] = length

    add(0, 50)
    add(2, 60)
    for count in range(20):
        if count == 10:
            for layer in batch:
                layer.remove_request(0)
            add(1, 7)
        live = [slot for slot, length in enumerate(batch[0].lengths) if length is not None]
        rows.append(model(ids_at(count, 1, 3), offsets, batch)[mx.array(live)])
        mx.eval(rows)
        for slot in live:
            offsets[slot] += 1
    for layer in batch:
        layer.release()
    return mx.concatenate(rows)


def run_ragged(model):
    """Engine steps: requests of different lengths, mixed with prefill chunks."""
    has_state = getattr(model, "state_bytes", 0) > 0
    storage = model.create_paged_storage(40, *([3] if has_state else []))
    rows, lengths = [], [0, 0, 0]
    for new in ([5, 9, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [2, 1, 1], [2, 1, 1], [2, 1, 1]):
        positions = [range(length, length + n) for length, n in zip(lengths, new, strict=True)]
        reads = [s if lengths[s] > 0 else -1 for s in range(3)]
        writes = [s if p == positions[s][-1] else -1 for s in range(3) for p in positions[s]]
        lengths = [length + n for length, n in zip(lengths, new, strict=True)]
        size = model.page_size
        batch = RaggedBatch(
            [p for sequence in positions for p in sequence],
            [(3 * (p // size) + s) * size + p % size for s in range(3) for p in positions[s]],
            [sum(new[:s]) for s in range(4)],
            lengths,
            [[3 * page + s for page in range(5)] for s in range(3)],
            *([reads, writes] if has_state else []),
        )
        ids = [3 + p * 7 % 90 for sequence in positions for p in sequence]
        rows.append(model.ragged_logits(ids, batch, range(len(ids)), storage))
        mx.eval(rows)
    return mx.concatenate(rows)


def week_2(mlx_model):
    return Qwen3ModelWeek2(mlx_model, enable_flash_attn=True)


def week_3(mlx_model):
    return Qwen3ModelWeek3(mlx_model, page_size=16)


RUNS = [
    pytest.param(week_2, run_alone, id="week 2"),
    pytest.param(week_2, run_batch, id="week 2, batch"),
    pytest.param(week_3, run_alone, id="week 3"),
    pytest.param(week_3, run_batch, id="week 3, batch"),
    pytest.param(week_3, run_ragged, id="week 3, ragged"),
]


def record_nodes(model, run, monkeypatch) -> list[list[str]]:
    """Records the nodes of all layers in each small step."""
    # `_run_planned` runs the layers of ragged batches, which always have a step plan.
    method = "_run_planned" if run is run_ragged else "_run_layers_from"
    layers, nodes = getattr(model, method), []

    def recorded(x, cos_sin, places):
        mx.eval(x, cos_sin)
        outputs = layers(x, cos_sin, places)
        if x.shape[0] * x.shape[1] < 5:  # without the block table's reshape
            nodes.append([name for name in node_names(outputs) if name != "Reshape"])
        return outputs

    monkeypatch.setattr(model, method, recorded)
    return nodes


@pytest.mark.parametrize(("make", "run"), RUNS)
@pytest.mark.parametrize(
    ("dtype", "is_quantized"),
    [(mx.bfloat16, True), (mx.float16, True), (mx.bfloat16, False), (mx.float32, False)],
)
def test_captured_layers_are_one_node_bitwise_equal_to_eager_layers(
    make, run, dtype, is_quantized, monkeypatch
):
    model = make(tiny_quantized_model(dtype) if is_quantized else tiny_model(dtype))
    runs = [run(model) for _ in range(2)]
    nodes = record_nodes(model, run, monkeypatch)
    runs.append(run(model))
    assert len(nodes) > 3
    # Steps in which the KV buffers grow do not replay a capture.
    replays = nodes.count(["TinyLlmReplay"])
    assert replays >= 0.8 * len(nodes) or not is_quantized, nodes
    monkeypatch.setattr("tiny_llm.kernels.graph_capture.MAX_CAPTURE_TOKENS", 0)
    expected = run(model)
    for times, actual in enumerate(runs, 1):
        assert_same_bits(actual, expected, f"run {times}: shapes are captured when they repeat")


def decoding(model):
    """Caches of one request after captured steps."""
    cache = model.create_kv_cache()
    for position, length in ((0, 3), (3, 1), (4, 1)):
        mx.eval(model(ids_at(position, length), position, cache))
    return cache


@pytest.mark.parametrize("make", [week_2, week_3])
def test_full_slot(make):
    model = make(tiny_quantized_model())
    batch = [BatchingKvCache(1, 6) for _ in range(model.num_hidden_layers)]
    for layer, mine in zip(batch, decoding(model), strict=True):
        layer.add_request(mine, 0)
    mx.eval(model(ids_at(5, 1), 5, batch))
    for _ in range(2):
        with pytest.raises(ValueError, match="slot 0 has 6 tokens; 1 more exceed max_seq_len 6"):
            model(ids_at(6, 1), 6, batch)
        assert [layer.lengths for layer in batch] == [[6]] * len(batch)


def test_exhausted_pool():
    model = week_3(tiny_quantized_model())
    model.page_pool = TinyKvPagedPool(2, capacity=3 * model.num_hidden_layers)
    cache = decoding(model)
    mx.eval(model(ids_at(5, 1), 5, cache))  # six tokens: three pages per request
    for _ in range(2):
        with pytest.raises(OutOfPagesError):
            model(ids_at(6, 1), 6, cache)
        assert [layer.offset for layer in cache] == [6] * len(cache)
    for layer in cache:
        layer.rewind(1)
    mx.eval(model(ids_at(5, 1), 5, cache))


def test_pool_of_another_model():
    model, other = week_3(tiny_quantized_model()), week_3(tiny_quantized_model(mx.float16))
    cache = decoding(other)
    for _ in range(2):
        with pytest.raises(ValueError, match="float16"):
            model(ids_at(5, 1), 5, cache)
        assert [layer.offset for layer in cache] == [5] * len(cache)


@pytest.mark.parametrize("make", [week_2, week_3])
def test_layers_of_different_lengths(make, monkeypatch):
    model = make(tiny_quantized_model())

    def logits():
        cache = decoding(model)
        cache[1].rewind(2)
        return mx.concatenate([model(ids_at(5 + i, 1), 5 + i, cache) for i in range(3)])

    actual = logits()
    monkeypatch.setattr("tiny_llm.kernels.graph_capture.MAX_CAPTURE_TOKENS", 0)
    assert_same_bits(actual, logits(), "layers with caches of different lengths")


def test_row_count_differs_from_slot_count():
    model = week_2(tiny_quantized_model())
    batch = [BatchingKvCache(2, 64) for _ in range(model.num_hidden_layers)]
    for layer, mine in zip(batch, decoding(model), strict=True):
        layer.add_request(mine, 0)
    with pytest.raises(ValueError, match="expected 2 rows, one per slot, got 1"):
        model(ids_at(5, 1), 5, batch)
