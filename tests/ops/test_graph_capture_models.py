"""`CapturedFunction` in models: same results and errors as eager layers."""

import mlx.core as mx
import pytest

from tests.support import assert_same_bits, tiny_model, tiny_quantized_model
from tiny_llm import BatchingKvCache, Qwen3ModelWeek2, Qwen3ModelWeek3
from tiny_llm.errors import OutOfPagesError
from tiny_llm.kv_cache.page_pool import TinyKvPagedPool

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


def week_2(mlx_model):
    return Qwen3ModelWeek2(mlx_model, enable_flash_attn=True)


def week_3(mlx_model):
    return Qwen3ModelWeek3(mlx_model, page_size=16)


@pytest.mark.parametrize("run", [run_alone, run_batch])
@pytest.mark.parametrize("make", [week_2, week_3])
@pytest.mark.parametrize(
    ("dtype", "is_quantized"),
    [(mx.bfloat16, True), (mx.float16, True), (mx.bfloat16, False), (mx.float32, False)],
)
def test_captured_layers_are_bitwise_equal_to_eager_layers(
    make, run, dtype, is_quantized, monkeypatch
):
    """tests/models/families/test_families.py has ragged batches, and the graph's nodes."""
    model = make(tiny_quantized_model(dtype) if is_quantized else tiny_model(dtype))
    runs = [run(model) for _ in range(3)]
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


def test_invalid_arguments():
    model = week_2(tiny_quantized_model())
    batch = [BatchingKvCache(2, 64) for _ in range(model.num_hidden_layers)]
    for layer, mine in zip(batch, decoding(model), strict=True):
        layer.add_request(mine, 0)
    with pytest.raises(ValueError, match="expected 2 rows, one per slot, got 1"):
        model(ids_at(5, 1), 5, batch)
    cache = decoding(week_3(tiny_quantized_model(mx.float16)))
    with pytest.raises(ValueError, match="float16"):
        week_3(tiny_quantized_model())(ids_at(5, 1), 5, cache)
    assert [layer.offset for layer in cache] == [5] * len(cache)
