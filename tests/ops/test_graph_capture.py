"""A `CapturedFunction` is one graph node with bitwise equal results."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import pytest

from tests.ops.captured_functions import (
    FUNCTIONS,
    CallCounter,
    E,
    assert_same,
    block,
    capture,
    inputs,
    mlx_only,
    node_names,
)
from tests.support import random
from tiny_llm import kernels
from tiny_llm.errors import UserError
from tiny_llm.kernels.graph_capture import MAX_CAPTURE_TOKENS, CapturedFunction

# Graph capture supports only the CPU.
pytestmark = pytest.mark.usefixtures("on_cpu")


@pytest.mark.parametrize("make", FUNCTIONS)
@pytest.mark.parametrize("by_token", [True, False])
def test_one_bitwise_equal_node_and_one_call_per_shape(make, by_token):
    calls, is_captured = CallCounter(make()), make is not mlx_only
    captured = CapturedFunction(calls)
    # Growing, shrinking and repeated shapes, since captured graphs share memory.
    shapes = [(1, 1), (3, 1), (1, 7), (1, 1), (2, 16), (1, 32), (3, 1), (1, 7), (1, 1)]
    for B, L in shapes:
        given = inputs(B, L, by_token)
        mx.eval(given)
        actual = captured(*given)
        assert (node_names(actual) == ["TinyLlmReplay"]) == is_captured
        assert_same(actual, calls.function(*given), f"{B}×{L}")
    assert (calls.count == len(set(shapes))) == is_captured


def test_inputs_of_any_layout():
    function = block()
    captured = CapturedFunction(function)
    x, attended = inputs(4, 3)
    wide = mx.concatenate([x, x], axis=-1)
    for given in (x, wide[..., :E], wide[::2].reshape(4, 3, E), mx.broadcast_to(x[:1], (4, 3, E))):
        assert_same(captured(given, attended), function(given, attended), "another layout")
        assert_same(captured(given, attended[:, ::-1]), function(given, attended[:, ::-1]), "heads")
    empty = x[:, :0], attended[:, :, :0]
    assert_same(captured(*empty), function(*empty), "no tokens")


def test_large_batches_are_not_captured():
    calls = CallCounter(block())
    captured = CapturedFunction(calls)
    for _ in range(3):
        mx.eval(captured(*inputs(1, MAX_CAPTURE_TOKENS + 1)))
    assert calls.count == 3


@pytest.mark.parametrize("make", FUNCTIONS)
def test_chained_unevaluated_steps_outlive_the_captured_function(make):
    function = make()
    x, attended = inputs(1, 1)
    captured = capture(CapturedFunction(function), x, attended)
    expected, actual = [], []
    for _ in range(5):  # the graph has five nodes that replay the same capture
        expected += function(x, attended)
        actual += captured(x, attended)
        x, attended = x + 1, attended * 2
    mx.eval(expected)
    mx.async_eval(actual)
    del captured, function
    gc.collect()
    assert_same(actual, expected, "steps in one graph")


@pytest.mark.parametrize("make", FUNCTIONS)
def test_threads_use_separate_streams(make):
    function = make()
    captured = CapturedFunction(function)
    given = inputs(1, 3)
    expected = function(*given)
    mx.eval(expected)
    capture(captured, *given)
    together = threading.Barrier(3)

    def run():
        mine = inputs(1, 3)
        mx.eval(mine)
        together.wait()  # starts all threads at the same time
        for _ in range(20):
            assert_same(captured(*mine), function(*mine), "in another thread")

    with ThreadPoolExecutor(3) as threads:
        for running in [threads.submit(run) for _ in range(3)]:
            running.result()


def test_per_thread_captures_are_bounded():
    weight = random(E).astype(mx.bfloat16)
    mx.eval(weight)  # evaluated here, because other threads cannot evaluate this thread's graphs
    calls = CallCounter(lambda x: (kernels.rms_norm(x, weight, 1e-6),))
    captured = CapturedFunction(calls)

    def run():
        for B in range(1, MAX_CAPTURE_TOKENS + 1):
            x = inputs(B, 1)[0]
            capture(captured, x)
            assert_same(captured(x), calls.function(x), f"{B} tokens")

    for threads in range(1, 6):  # sequential threads, each newly started
        with ThreadPoolExecutor(1) as thread:
            thread.submit(run).result()
        assert calls.count == threads * MAX_CAPTURE_TOKENS
    run()


def test_memory_does_not_grow():
    given = inputs(4, 4)
    captured = capture(CapturedFunction(block()), *given)
    mx.eval(captured(*given))
    before = mx.get_active_memory()
    for _ in range(50):
        mx.eval(captured(*given))
    assert mx.get_active_memory() <= before


@pytest.mark.parametrize("dtype", [mx.bool_, mx.uint8, mx.float16, mx.float32, mx.int64])
def test_elements_of_any_size_are_copied(dtype):
    weight = random(E).astype(mx.bfloat16)

    def function(x, y):  # reshaping a transposed array requires a copy
        return kernels.rms_norm(x, weight, 1e-6), y.swapaxes(0, 1).reshape(-1)

    x = inputs(1, 1)[0]
    y = mx.arange(6 * 8).reshape(6, 8).astype(dtype)
    captured = CapturedFunction(function)
    for other in (y, y, y.T.reshape(8, 6).T, mx.broadcast_to(y[:1], (6, 8)), y[::2], y[::2]):
        actual, expected = captured(x, other), function(x, other)
        assert mx.array_equal(actual[1], expected[1])


def test_constants_are_evaluated_once():
    lazy = random(E).astype(mx.bfloat16) * 3  # unevaluated constant

    def function(x):
        return (kernels.rms_norm(x, lazy, 1e-6),)

    x = inputs(1, 1)[0]
    captured = capture(CapturedFunction(function), x)
    assert_same(captured(x), function(x), "function of a constant")


def test_function_errors_propagate():
    def function(x):
        return (kernels.rms_norm(x, mx.ones(E + 1, mx.bfloat16), 1e-6),)

    captured = CapturedFunction(function)
    for _ in range(3):
        with pytest.raises(ValueError, match=r"\[rms_norm\]"):
            captured(inputs(1, 1)[0])


def test_misuse_is_rejected():
    graph_cache = kernels.extension().GraphCache()
    x = random(1, 1, E)
    mx.eval(x)
    assert graph_cache.replay([x]) is None
    norm = mx.ones(E)
    (blank,) = graph_cache.placeholders([x])
    (other,) = graph_cache.placeholders([x])
    for outputs in ([], [blank], [x]):
        with pytest.raises(ValueError, match="expected at least one output computed by an"):
            graph_cache.capture([blank], outputs)
    with pytest.raises(
        ValueError, match="expected only operations of tiny_llm_ext and MLX views, got Add"
    ):
        graph_cache.capture([blank], [blank + 1])
    # `other` is not an input of the captured graph.
    with pytest.raises(RuntimeError, match="without a primitive"):
        graph_cache.capture([blank], list(kernels.add_rms_norm(blank, other, norm, 1e-6)))
    for arguments in ([None], [x, "x"], None, x.tolist()):
        with pytest.raises(TypeError):
            graph_cache.replay(arguments)
    assert graph_cache.replay([]) is None
    assert graph_cache.replay([x]) is None


def test_capture_switch(monkeypatch):
    calls = CallCounter(block())
    captured = CapturedFunction(calls)
    given = inputs(1, 1)
    mx.eval(given)
    for setting, nodes in (("on", 1), ("off", 8), ("", 1)):
        monkeypatch.setenv("TINY_LLM_GRAPH_CAPTURE", setting)
        assert len(node_names(captured(*given))) == nodes
    monkeypatch.setenv("TINY_LLM_GRAPH_CAPTURE", "always")
    with pytest.raises(UserError, match='TINY_LLM_GRAPH_CAPTURE must be on or off, got "always"'):
        captured(*given)
