"""`Recorded`: the bits of the function, from one node, whatever the function does with arrays."""

import gc
import io
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.support import assert_same_bits, random, tiny_model
from tiny_llm import BatchingKvCache, Qwen3ModelWeek2, Qwen3ModelWeek3, kernels
from tiny_llm.errors import OutOfPagesError
from tiny_llm.kernels.recorded import MOST_TOKENS, Recorded
from tiny_llm.kv_cache.page_pool import TinyKvPagedPool
from tiny_llm.kv_cache.paged_storage import RaggedBatch
from tiny_llm.quantize import QuantizedWeights, project, project_each

E, H, D = 128, 4, 32


# A GPU's graph has no such node.
pytestmark = pytest.mark.usefixtures("on_cpu")


def weights(outputs: int) -> QuantizedWeights:
    packed = mx.quantize(random(outputs, E).astype(mx.bfloat16), group_size=64, bits=4)
    return QuantizedWeights(packed[1], packed[2], 64, 4, packed[0])


class Calls:
    """A function that counts how often it is called."""

    def __init__(self, function):
        self.function = function
        self.count = 0

    def __call__(self, *inputs):
        self.count += 1
        return self.function(*inputs)


def block():
    """Operations of the extension and views, as around attention."""
    wq, wo, norm = weights(H * D), weights(E), random(E).astype(mx.bfloat16)

    def function(x, attended):
        B, H, L, D = attended.shape
        update = project(attended.swapaxes(1, 2).reshape(B, L, H * D), wo)
        total, normed = kernels.add_rms_norm(x, update, norm, 1e-6)
        first, second = project_each(normed, (wq, wq))
        heads = first.reshape(B, L, H, D)
        return x, total, heads.swapaxes(1, 2), kernels.swiglu(first, second)

    return function


def mlx_only():
    """Operations of MLX, which cannot be captured."""
    w = random(E, E)

    def function(x, attended):
        y = mx.softmax(x.astype(mx.float32) @ w.T, axis=-1)
        return y.reshape(*y.shape[:-1], 2, E // 2)[..., 0, :], mx.concatenate([y, y], axis=-1)

    return function


def attention():
    """Attention, and a projection of some rows of its result."""
    w = weights(H * D)

    def function(x, attended):
        B, H, L, D = attended.shape
        query = project(x, w).reshape(B, L, H, D).swapaxes(1, 2)
        out = kernels.flash_attention(query, attended, attended, causal=True)
        return out, project(out.swapaxes(1, 2)[:1].squeeze(0).reshape(L, H * D), w)

    return function


FUNCTIONS = [block, mlx_only, attention]


def used(recorded, *given):
    """A function that has been recorded for inputs of these shapes."""
    mx.eval(given, recorded(*given))
    return recorded


def inputs(B: int, L: int, by_token: bool = False):
    """x, and attention's result: head by head, or as attention lays it out."""
    x = random(B, L, E).astype(mx.bfloat16)
    if by_token:
        return x, random(B, L, H, D).astype(mx.bfloat16).swapaxes(1, 2)
    return x, random(B, H, L, D).astype(mx.bfloat16)


def assert_same(actual, expected, what):
    assert len(actual) == len(expected)
    for index, (x, y) in enumerate(zip(actual, expected, strict=True)):
        assert_same_bits(x, y, f"{what}, output {index}")


@pytest.mark.parametrize("make", FUNCTIONS)
@pytest.mark.parametrize("by_token", [True, False])
def test_the_bits_of_the_function(make, by_token):
    function = make()
    recorded = Recorded(function)
    # Growing, shrinking and repeated shapes: recordings share their memory.
    for B, L in [(1, 1), (3, 1), (1, 7), (1, 1), (2, 16), (1, 32), (3, 1), (1, 7), (1, 1)]:
        given = inputs(B, L, by_token)
        assert_same(recorded(*given), function(*given), f"{B}×{L}")


def test_inputs_of_any_layout():
    function = block()
    recorded = Recorded(function)
    x, attended = inputs(4, 3)
    wide = mx.concatenate([x, x], axis=-1)
    for given in (x, wide[..., :E], wide[::2].reshape(4, 3, E), mx.broadcast_to(x[:1], (4, 3, E))):
        assert_same(recorded(given, attended), function(given, attended), "another layout")
        assert_same(recorded(given, attended[:, ::-1]), function(given, attended[:, ::-1]), "heads")


@pytest.mark.parametrize("make", [block, attention])
def test_the_function_is_called_once_a_shape(make):
    calls = Calls(make())
    recorded = Recorded(calls)
    for B, L in [(1, 1), (1, 1), (2, 1), (1, 1), (1, 2), (2, 1)]:
        mx.eval(recorded(*inputs(B, L)))
    assert calls.count == 3


def test_many_tokens_are_not_recorded():
    calls = Calls(block())
    recorded = Recorded(calls)
    for _ in range(3):
        mx.eval(recorded(*inputs(1, MOST_TOKENS + 1)))
    assert calls.count == 3


def node_names(outputs):
    dot = io.StringIO()
    mx.export_to_dot(dot, *outputs)
    return re.findall(r'label ="(\w+)", shape=rectangle', dot.getvalue())


@pytest.mark.parametrize("make", [block, attention])
def test_one_node(make):
    given = inputs(2, 1)
    recorded = used(Recorded(make()), *given)
    assert node_names(recorded(*given)) == ["TinyLlmReplay"]


@pytest.mark.parametrize("make", FUNCTIONS)
def test_unevaluated_steps_follow_one_another(make):
    function = make()
    x, attended = inputs(1, 1)
    recorded = used(Recorded(function), x, attended)
    expected, actual = [], []
    for _ in range(5):  # five nodes of one recording in one graph
        expected += function(x, attended)
        actual += recorded(x, attended)
        x, attended = x + 1, attended * 2
    assert_same(actual, expected, "in one graph")


@pytest.mark.parametrize("make", FUNCTIONS)
def test_recordings_outlive_their_recorder(make):
    function = make()
    given = inputs(1, 2)
    recorded = used(Recorded(function), *given)
    expected = function(*given)
    mx.eval(expected)
    actual = recorded(*given)
    mx.async_eval(actual)
    del recorded, function
    gc.collect()
    assert_same(actual, expected, "after the recorder was dropped")


@pytest.mark.parametrize("make", FUNCTIONS)
def test_other_threads_have_streams_of_their_own(make):
    function = make()
    recorded = Recorded(function)
    given = inputs(1, 3)
    expected = function(*given)
    mx.eval(expected)
    used(recorded, *given)
    together = threading.Barrier(3)

    def run():
        mine = inputs(1, 3)
        mx.eval(mine)
        together.wait()  # three threads, at the same time
        for _ in range(20):
            assert_same(recorded(*mine), function(*mine), "in a thread")

    with ThreadPoolExecutor(3) as threads:
        for running in [threads.submit(run) for _ in range(3)]:
            running.result()


def test_threads_that_come_and_go_leave_no_more_than_a_bound():
    weight = random(E).astype(mx.bfloat16)
    mx.eval(weight)  # another thread cannot
    calls = Calls(lambda x: (kernels.rms_norm(x, weight, 1e-6),))
    recorded = Recorded(calls)

    def run():
        for B in range(1, MOST_TOKENS + 1):
            x = inputs(B, 1)[0]
            used(recorded, x)
            assert_same(recorded(x), calls.function(x), f"{B} tokens")

    for threads in range(1, 6):  # one after the other
        with ThreadPoolExecutor(1) as thread:
            thread.submit(run).result()
        assert calls.count == threads * MOST_TOKENS
    run()


def test_memory_does_not_grow():
    given = inputs(4, 4)
    recorded = used(Recorded(block()), *given)
    mx.eval(recorded(*given))
    before = mx.get_active_memory()
    for _ in range(50):
        mx.eval(recorded(*given))
    assert mx.get_active_memory() <= before


@pytest.mark.parametrize("dtype", [mx.bool_, mx.uint8, mx.float16, mx.float32, mx.int64])
def test_items_of_any_size_are_copied(dtype):
    weight = random(E).astype(mx.bfloat16)

    def function(x, y):  # a transposed array is reshaped: a copy
        return kernels.rms_norm(x, weight, 1e-6), y.swapaxes(0, 1).reshape(-1)

    x = inputs(1, 1)[0]
    y = mx.arange(6 * 8).reshape(6, 8).astype(dtype)
    recorded = Recorded(function)
    for other in (y, y, y.T.reshape(8, 6).T, mx.broadcast_to(y[:1], (6, 8)), y[::2], y[::2]):
        actual, expected = recorded(x, other), function(x, other)
        assert mx.array_equal(actual[1], expected[1])


def test_no_tokens():
    function = block()
    x, attended = inputs(1, 2)
    empty = x[:, :0], attended[:, :, :0]
    assert_same(Recorded(function)(*empty), function(*empty), "no tokens")


def test_what_a_function_reads_is_evaluated_once():
    lazy = random(E).astype(mx.bfloat16) * 3  # a constant that is not evaluated yet

    def function(x):
        return (kernels.rms_norm(x, lazy, 1e-6),)

    x = inputs(1, 1)[0]
    recorded = used(Recorded(function), x)
    assert_same(recorded(x), function(x), "with a constant")


NORM = mx.ones(E, mx.bfloat16)
OTHER = mx.new_stream(mx.cpu)
mx.eval(NORM)


def norm(x, stream=mx.cpu):
    return kernels.rms_norm(x, NORM, 1e-6, stream=stream)


def nothing_new(x, buffer):
    return x, buffer


def on_two_streams(x, buffer):
    return (norm(norm(x, OTHER)),)


def writes_to_what_is_read_later(x, buffer):
    return kernels.cache_write(buffer, x[None], [0]), norm(buffer)


def writes_to_what_a_view_shows_later(x, buffer):
    view = buffer[:, :, :2].swapaxes(1, 2)
    return kernels.cache_write(buffer, x[None], [0]), norm(view)


def writes_to_what_is_returned(x, buffer):
    return kernels.cache_write(buffer, x[None], [0]), buffer[:, :, :3]


def writes_a_part_of_it(x, buffer):
    return (kernels.cache_write(buffer, buffer[:, :, 1:4], [2]),)


def writes_to_a_view(x, buffer):
    return (kernels.cache_write(buffer[:, :, :6], x[None], [2]),)


def writes_to_a_result(x, buffer):
    return (kernels.cache_write(norm(buffer), x[None], [2]),)


def writes_to_a_constant(x, buffer):
    return (kernels.cache_write(mx.zeros((1, 1, 9, E), x.dtype), x[None], [0]),)


UNFIT = [nothing_new, on_two_streams, writes_to_what_is_read_later, writes_to_a_view]
UNFIT += [writes_to_what_a_view_shows_later, writes_to_what_is_returned, writes_a_part_of_it]
UNFIT += [writes_to_a_result, writes_to_a_constant]


def reads_before_it_writes(x, buffer):
    view = buffer[:, :, :2].swapaxes(1, 2)
    return norm(view), norm(buffer), kernels.cache_write(buffer, x[None], [0])


def writes_twice_and_returns_a_view(x, buffer):
    first = kernels.cache_write(buffer, x[None], [0])
    second = kernels.cache_write(first, norm(x)[None], [3])
    return x, second[:, :, 2:6], second.swapaxes(1, 2)


@pytest.mark.parametrize("function", UNFIT)
def test_functions_that_cannot_be_recorded_are_called(function):
    calls = Calls(function)
    recorded = Recorded(calls)
    x, buffer = inputs(1, 4)[0], random(1, 1, 9, E).astype(mx.bfloat16)
    for _ in range(4):
        assert_same(recorded(x, buffer), function(x, buffer), function.__name__)
    assert calls.count == 5, "each time, and once to see that it cannot be recorded"


@pytest.mark.parametrize("function", [reads_before_it_writes, writes_twice_and_returns_a_view])
def test_functions_that_write_and_read(function):
    calls = Calls(function)
    recorded = Recorded(calls)
    x, buffer = inputs(1, 4)[0], random(1, 1, 9, E).astype(mx.bfloat16)
    for _ in range(3):
        expected = function(x, buffer)
        mx.eval(expected)
        assert_same(recorded(x, buffer + 0), expected, function.__name__)
    assert calls.count == 1


def test_errors_of_the_function_are_its_own():
    def function(x):
        return (kernels.rms_norm(x, mx.ones(E + 1, mx.bfloat16), 1e-6),)

    recorded = Recorded(function)
    for _ in range(3):
        with pytest.raises(ValueError, match=r"\[rms_norm\]"):
            recorded(inputs(1, 1)[0])


def test_misuse_of_the_recorder_is_refused():
    recorder = kernels.extension().Recorder()
    x = random(1, 1, E)
    mx.eval(x)
    assert recorder.replay([x]) is None
    norm = mx.ones(E)
    (blank,) = recorder.placeholders([x])
    (other,) = recorder.placeholders([x])
    for outputs in ([], [blank], [x]):
        with pytest.raises(ValueError, match="expected a function that computes something"):
            recorder.record([blank], outputs)
    with pytest.raises(ValueError, match="expected operations of the extension and views, got Add"):
        recorder.record([blank], [blank + 1])
    with pytest.raises(RuntimeError, match="without a primitive"):  # what nobody will ever give
        recorder.record([blank], list(kernels.add_rms_norm(blank, other, norm, 1e-6)))
    for arguments in ([None], [x, "x"], None, x.tolist()):
        with pytest.raises(TypeError):
            recorder.replay(arguments)
    assert recorder.replay([]) is None
    assert recorder.replay([x]) is None


# --- buffers that are written in place ----------------------------------------------------------


def write(x, buffer, offsets):
    """x into a buffer, whose new contents are read, and turned."""
    new = kernels.cache_write(buffer, x[None], offsets)
    query = x[None, :, :1]
    return kernels.flash_attention(query, new, new), new


def plain_write(x, buffer, offset):
    """The same in MLX."""
    new = mx.concatenate([buffer[:, :, :offset], x[None], buffer[:, :, offset + 2 :]], axis=2)
    query = x[None, :, :1]
    return kernels.flash_attention(query, new, new), new


def step(C: int = 1000):
    """Two tokens of three heads, and a buffer for C: 3·C·E·2 bytes."""
    x, buffer = random(3, 2, E).astype(mx.bfloat16), random(1, 3, C, E).astype(mx.bfloat16)
    mx.eval(x, buffer)
    return x, buffer


def copied_bytes(function):
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    function()
    return mx.get_peak_memory() - before


def test_a_buffer_is_written_in_place():
    recorded = Recorded(write)
    x, buffer = step()
    expected = buffer
    for place in (5, 0, 998, 17, 300):
        expected_out, expected = plain_write(x, expected, place)
        mx.eval(expected_out, expected)
        state = {"buffer": buffer}
        del buffer

        def run(state=state, place=place):
            offsets = mx.array([place], mx.int32)
            state["out"], state["buffer"] = recorded(x, state.pop("buffer"), offsets)
            mx.eval(state["out"])

        copied = copied_bytes(run)
        assert copied < 100_000, f"{copied / 1e3:.0f} kB were copied instead of two tokens"
        buffer = state["buffer"]
        assert_same_bits(state["out"], expected_out, f"attention at {place}")
        assert_same_bits(buffer, expected, f"buffer at {place}")


@pytest.mark.parametrize("keep", ["array", "slice", "lazy slice", "lazy sum"])
def test_a_buffer_that_somebody_has_is_copied(keep):
    recorded = Recorded(write)
    x, buffer = step()
    offsets = mx.array([7], mx.int32)
    used(recorded, x, buffer, offsets)
    kept = {"array": buffer, "lazy sum": buffer.sum()}.get(keep, buffer[:, :, :10])
    expected = {"lazy sum": buffer.sum()}.get(keep, kept + 0)
    mx.eval(expected)
    if keep == "slice":
        mx.eval(kept)
    out, new = recorded(x, buffer, offsets)
    del buffer
    mx.eval(out, new)
    assert_same_bits(kept, expected, f"what was kept as {keep}")
    assert_same_bits(new[:, :, 7:9], x[None], "what was written")


def test_buffers_in_turns():
    """More of them than a recording has programs for."""
    recorded = Recorded(write)
    x, _ = step(10)
    mine = [step(10)[1] for _ in range(20)]
    theirs = list(mine)
    for place in (0, 5, 8, 3):
        for i in range(20):
            _, mine[i] = recorded(x, mine[i], mx.array([place], mx.int32))
            mx.eval(mine[i])
            _, theirs[i] = plain_write(x, theirs[i], place)
    for i in range(20):
        assert_same_bits(mine[i], theirs[i], f"buffer {i}")


def test_a_buffer_of_any_layout():
    recorded = Recorded(write)
    x, buffer = step(10)
    offsets = mx.array([4], mx.int32)
    used(recorded, x, buffer, offsets)
    by_token = mx.contiguous(buffer.swapaxes(1, 2)).swapaxes(1, 2)
    part = mx.concatenate([buffer, buffer], axis=2)[:, :, :10]
    for other in (by_token, part, mx.broadcast_to(buffer[:, :1], buffer.shape)):
        expected = plain_write(x, other, 4)
        assert_same(recorded(x, other, offsets), expected, "another layout")


def test_steps_that_are_evaluated_together():
    recorded = Recorded(write)
    x, mine = step(10)
    used(recorded, x, mine, mx.array([0], mx.int32))
    theirs, out, expected = mine, [], []
    for place in (0, 2, 4, 1):
        attended, mine = recorded(x, mine, mx.array([place], mx.int32))
        out.append(attended)
        attended, theirs = plain_write(x, theirs, place)
        expected.append(attended)
    assert_same([*out, mine], [*expected, theirs], "in one graph")


def test_only_the_buffer_is_asked_for():
    """Any output of the node may be the one that MLX evaluates it for."""
    recorded = Recorded(write)
    x, buffer = step()
    expected = plain_write(x, plain_write(x, buffer, 3)[1], 9)[1]
    mx.eval(expected, recorded(x, buffer, mx.array([0], mx.int32)))
    state = {"buffer": buffer + 0}
    mx.eval(state)
    for place in (3, 9):

        def run(place=place):
            _, state["buffer"] = recorded(x, state.pop("buffer"), mx.array([place], mx.int32))
            mx.eval(state["buffer"])

        assert copied_bytes(run) < 100_000
    assert_same_bits(state["buffer"], expected, "the buffer")


# --- models -------------------------------------------------------------------------------------


def quantized(dtype=mx.bfloat16):
    mlx_model = tiny_model(dtype=dtype, hidden_size=64, intermediate_size=96)
    nn.quantize(mlx_model, group_size=32, bits=4)
    return mlx_model


def ids_at(position: int, length: int, B: int = 1) -> mx.array:
    return mx.array([[3 + (position + i + b) * 7 % 90 for i in range(length)] for b in range(B)])


def run_alone(model):
    """One request: chunks of a prompt, steps of one token and of two, and what was rewound."""
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
    """Slots of different lengths, one of them idle; a request leaves and another comes."""
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
    """An engine's steps: requests of different lengths, chunks among them."""
    storage = model.create_paged_storage(40)
    rows, lengths = [], [0, 0, 0]
    for new in ([5, 9, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [2, 1, 1], [2, 1, 1], [2, 1, 1]):
        positions = [range(length, length + n) for length, n in zip(lengths, new, strict=True)]
        lengths = [length + n for length, n in zip(lengths, new, strict=True)]
        size = model.page_size
        batch = RaggedBatch(
            [p for sequence in positions for p in sequence],
            [(3 * (p // size) + s) * size + p % size for s in range(3) for p in positions[s]],
            [sum(new[:s]) for s in range(4)],
            lengths,
            [[3 * page + s for page in range(5)] for s in range(3)],
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
    pytest.param(week_2, run_batch, id="week 2, a batch"),
    pytest.param(week_3, run_alone, id="week 3"),
    pytest.param(week_3, run_batch, id="week 3, a batch"),
    pytest.param(week_3, run_ragged, id="week 3, ragged"),
]


@pytest.mark.parametrize(("make", "run"), RUNS)
@pytest.mark.parametrize(
    ("dtype", "is_quantized"),
    [(mx.bfloat16, True), (mx.float16, True), (mx.bfloat16, False), (mx.float32, False)],
)
def test_a_model_has_the_bits_of_its_plain_layers(make, run, dtype, is_quantized, monkeypatch):
    mlx_model = tiny_model(dtype=dtype, hidden_size=64, intermediate_size=96)
    if is_quantized:
        nn.quantize(mlx_model, group_size=32, bits=4)
    model = make(mlx_model)
    first, second = run(model), run(model)
    monkeypatch.setattr("tiny_llm.kernels.recorded.MOST_TOKENS", 0)
    expected = run(model)
    assert_same_bits(first, expected, "while it is recorded")
    assert_same_bits(second, expected, "recorded")


@pytest.mark.parametrize(("make", "run"), RUNS)
def test_a_model_s_layers_are_one_node(make, run):
    model = make(quantized())
    run(model)
    # An engine's batch always has a plan, and the layers run by it; a cache may have none.
    method = "_run_placed" if run is run_ragged else "_run_layers_from"
    layers, nodes = getattr(model, method), []

    def look(x, rotation, places):
        mx.eval(x, rotation)
        outputs = layers(x, rotation, places)
        if x.shape[0] * x.shape[1] < 5:
            nodes.append(node_names(outputs))
            nodes[-1] = [name for name in nodes[-1] if name != "Reshape"]  # of the block table
        return outputs

    setattr(model, method, look)
    run(model)
    assert len(nodes) > 3
    # Those in between are steps for which room is made.
    assert nodes.count(["TinyLlmReplay"]) >= 0.8 * len(nodes), nodes


# --- what is refused is refused as before, and nothing is lost ----------------------------------


def decoding(model):
    """A request's caches whose steps are recorded."""
    cache = model.create_kv_cache()
    for position, length in ((0, 3), (3, 1), (4, 1)):
        mx.eval(model(ids_at(position, length), position, cache))
    return cache


@pytest.mark.parametrize("make", [week_2, week_3])
def test_a_slot_that_is_full(make):
    model = make(quantized())
    batch = [BatchingKvCache(1, 6) for _ in range(model.num_hidden_layers)]
    for layer, mine in zip(batch, decoding(model), strict=True):
        layer.add_request(mine, 0)
    mx.eval(model(ids_at(5, 1), 5, batch))
    for _ in range(2):
        with pytest.raises(ValueError, match="slot 0 has 6 tokens; 1 more are beyond 6"):
            model(ids_at(6, 1), 6, batch)
        assert [layer.lengths for layer in batch] == [[6]] * len(batch)


def test_a_pool_without_pages():
    model = week_3(quantized())
    model.page_pool = TinyKvPagedPool(2, capacity=3 * model.num_hidden_layers)
    cache = decoding(model)
    mx.eval(model(ids_at(5, 1), 5, cache))  # six tokens in three pages each
    for _ in range(2):
        with pytest.raises(OutOfPagesError):
            model(ids_at(6, 1), 6, cache)
        assert [layer.offset for layer in cache] == [6] * len(cache)
    for layer in cache:
        layer.rewind(1)
    mx.eval(model(ids_at(5, 1), 5, cache))


def test_a_pool_of_another_model():
    model, other = week_3(quantized()), week_3(quantized(mx.float16))
    cache = decoding(other)
    for _ in range(2):
        with pytest.raises(ValueError, match="float16"):
            model(ids_at(5, 1), 5, cache)
        assert [layer.offset for layer in cache] == [5] * len(cache)


@pytest.mark.parametrize("make", [week_2, week_3])
def test_layers_of_different_lengths(make, monkeypatch):
    model = make(quantized())

    def logits():
        cache = decoding(model)
        cache[1].rewind(2)
        return mx.concatenate([model(ids_at(5 + i, 1), 5 + i, cache) for i in range(3)])

    actual = logits()
    monkeypatch.setattr("tiny_llm.kernels.recorded.MOST_TOKENS", 0)
    assert_same_bits(actual, logits(), "layers of different lengths")


def test_rows_that_are_no_slots():
    model = week_2(quantized())
    batch = [BatchingKvCache(2, 64) for _ in range(model.num_hidden_layers)]
    for layer, mine in zip(batch, decoding(model), strict=True):
        layer.add_request(mine, 0)
    with pytest.raises(ValueError, match="1 rows were given for 2 slots"):
        model(ids_at(5, 1), 5, batch)
