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
from tiny_llm import Qwen3ModelWeek2, kernels
from tiny_llm.quantize import QuantizedWeights, project, project_each
from tiny_llm.recorded import MOST_TOKENS, Recorded

E, H, D = 128, 4, 32


@pytest.fixture(autouse=True)
def _on_the_cpu():
    """A GPU's graph has no such node."""
    before = mx.default_device()
    mx.set_default_device(mx.cpu)
    yield
    mx.set_default_device(before)


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
    """Operations of the extension whose tasks are not captured."""
    w = weights(H * D)

    def function(x, attended):
        B, H, L, D = attended.shape
        query = project(x, w).reshape(B, L, H, D).swapaxes(1, 2)
        return (kernels.flash_attention(query, attended, attended, causal=True),)

    return function


FUNCTIONS = [block, mlx_only, attention]


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


@pytest.mark.parametrize("make", FUNCTIONS)
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


def test_none_among_the_arguments_is_the_function_s_own():
    calls = Calls(lambda x, y: (x,) if y is None else (x + y,))
    recorded = Recorded(calls)
    x = inputs(1, 1)[0]
    for _ in range(2):
        assert_same(recorded(x, None), [x], "as given")
    assert calls.count == 2


def test_one_node():
    given = inputs(2, 1)
    mx.eval(given)
    recorded = Recorded(block())
    dot = io.StringIO()
    mx.export_to_dot(dot, *recorded(*given))
    assert re.findall(r'label ="(\w+)", shape=rectangle', dot.getvalue()) == ["TinyLlmReplay"]


@pytest.mark.parametrize("make", FUNCTIONS)
def test_unevaluated_steps_follow_one_another(make):
    function = make()
    recorded = Recorded(function)
    x, attended = inputs(1, 1)
    expected, actual = [], []
    for _ in range(5):  # five nodes of one recording in one graph
        expected += function(x, attended)
        actual += recorded(x, attended)
        x, attended = x + 1, attended * 2
    assert_same(actual, expected, "in one graph")


@pytest.mark.parametrize("make", FUNCTIONS)
def test_recordings_outlive_their_recorder(make):
    function = make()
    recorded = Recorded(function)
    given = inputs(1, 2)
    expected = function(*given)
    mx.eval(given, expected)
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
    mx.eval(given, expected, recorded(*given))
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
            assert_same(recorded(x), calls.function(x), f"{B} tokens")

    for expected in range(1, 6):  # one after the other
        with ThreadPoolExecutor(1) as thread:
            thread.submit(run).result()
        assert calls.count == expected * MOST_TOKENS
    run()


def test_memory_does_not_grow():
    recorded = Recorded(block())
    given = inputs(4, 4)
    mx.eval(given, recorded(*given))
    before = mx.get_active_memory()
    for _ in range(50):
        mx.eval(recorded(*given))
    assert mx.get_active_memory() <= before


@pytest.mark.parametrize("dtype", [mx.bool_, mx.uint8, mx.float16, mx.float32, mx.int64])
def test_items_of_any_size_are_copied(dtype):
    weight = random(E).astype(mx.bfloat16)

    def function(x, y):  # a transposed array is reshaped: a copy
        return kernels.rms_norm(x, weight, 1e-6), y.swapaxes(0, 1).reshape(-1)

    recorded = Recorded(function)
    x = inputs(1, 1)[0]
    y = mx.arange(6 * 8).reshape(6, 8).astype(dtype)
    for other in (y, y.T, mx.broadcast_to(y[:1], (6, 8)), y[::2]):
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

    recorded = Recorded(function)
    x = inputs(1, 1)[0]
    assert_same(recorded(x), function(x), "with a constant")


def test_functions_that_cannot_be_recorded():
    x = inputs(1, 1)[0]
    with pytest.raises(ValueError, match="expected a function that computes something"):
        Recorded(lambda x: (x,))(x)
    other = mx.new_stream(mx.cpu)

    def on_two_streams(x):
        return (kernels.rms_norm(mx.exp(x), mx.ones(E, mx.bfloat16), 1e-6, stream=other),)

    with pytest.raises(ValueError, match="expected all operations on one stream"):
        Recorded(on_two_streams)(x)


def test_misuse_of_the_recorder_is_refused():
    recorder = kernels.extension().Recorder()
    x = random(1, 1, E)
    mx.eval(x)
    assert recorder.replay([x]) is None
    (blank,) = recorder.placeholders([x])
    (other,) = recorder.placeholders([x])
    for outputs in ([], [blank], [x]):
        with pytest.raises(ValueError, match="expected a function that computes something"):
            recorder.record([blank], outputs)
    with pytest.raises(RuntimeError, match="without a primitive"):
        recorder.record([blank], [blank + other])  # from arrays that nobody will ever give
    for arguments in ([None], [x, "x"], None, x.tolist()):
        with pytest.raises(TypeError):
            recorder.replay(arguments)
    assert recorder.replay([]) is None
    assert recorder.replay([x]) is None


@pytest.mark.parametrize(
    ("dtype", "is_quantized"),
    [(mx.bfloat16, True), (mx.float16, True), (mx.bfloat16, False), (mx.float32, False)],
)
@pytest.mark.parametrize("flash", [True, False])
def test_the_model_has_the_bits_of_plain_blocks(dtype, is_quantized, flash, monkeypatch):
    mlx_model = tiny_model(dtype=dtype, hidden_size=64, intermediate_size=96)
    if is_quantized:
        nn.quantize(mlx_model, group_size=32, bits=4)
    model = Qwen3ModelWeek2(mlx_model, enable_flash_attn=flash)

    def logits():
        cache, position, rows = model.create_kv_cache(), 0, []
        for length in (5, 1, 1, 2, 40, 1):
            ids = mx.array([[3 + (position + i) * 7 % 90 for i in range(length)]])
            rows.append(model(ids, position, cache))
            position += length
        return mx.concatenate(rows, axis=1)

    actual = logits()
    monkeypatch.setattr("tiny_llm.recorded.MOST_TOKENS", 0)
    assert_same_bits(actual, logits(), "recorded blocks")
