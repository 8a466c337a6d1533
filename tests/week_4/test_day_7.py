"""Week 4, day 7: cost per graph node and capturing a step as one node."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.ops.captured_functions import (
    CallCounter,
    E,
    assert_same,
    block,
    inputs,
    mlx_only,
    node_names,
)
from tests.support import assert_equal, assert_same_bits, random, tiny_model
from tiny_llm import Qwen3ModelWeek2, kernels
from tiny_llm.kernels.graph_capture import CAPTURE_VARIABLE, CapturedFunction
from tiny_llm.kernels.roofline import Timings, captured_time_fraction, seconds_per_node

pytestmark = pytest.mark.usefixtures("on_cpu")  # graph capture supports only the CPU


def test_task_1_seconds_per_node():
    # Minima: 30 µs per evaluation and 5 µs per node. Medians, here 1 s, must be ignored.
    measured = {n: Timings(1.0, 30e-6 + 5e-6 * n) for n in (1, 50, 200)}
    assert seconds_per_node(measured) == pytest.approx(5e-6), "expected 5 µs per node"
    measured = {n: Timings(1, t * 1e-6) for n, t in ((1, 10), (2, 9), (3, 14), (4, 13))}
    # By hand: Σ(n − 2.5)(t − 11.5) / Σ(n − 2.5)² = 7 / 5.
    seconds = seconds_per_node(measured)
    assert_equal(seconds, pytest.approx(1.4e-6), "the slope of a least-squares fit")
    fraction = captured_time_fraction(170, 20, 4e-6, 2e-3)
    assert_equal(fraction, pytest.approx(0.7), "the time of 20 nodes to remain")
    assert captured_time_fraction(20, 20, 4e-6, 2e-3) == 1
    assert captured_time_fraction(1000, 10, 5e-6, 1e-3) == 0, "expected 0, not a negative fraction"


def steps_of(function, *given):
    """Steps captured from a call of the function with the given arrays."""
    graph_cache = kernels.extension().GraphCache()
    blanks = graph_cache.placeholders(given)
    try:
        graph_cache.capture(blanks, list(function(*blanks)))
    except RuntimeError as error:
        if "yours to write" in str(error):
            raise
        pytest.fail(f"expected the function to be captured, got: {error}")
    return graph_cache.steps()


def norm(x, weight=None):
    return kernels.rms_norm(x, mx.ones(x.shape[-1]) if weight is None else weight, 1e-6)


def test_task_2_input_dependent_nodes_are_steps_others_constants():
    x, weight = random(1, 1, E), mx.ones(E)

    def function(x, y):
        lazy = weight * 2 + 1  # MLX operations, which cannot be captured as steps
        return (kernels.swiglu(norm(norm(x), lazy), norm(lazy)[None, None]),)

    found = [step[:3] for step in steps_of(function, x, x)]
    norms = [("TinyLlmRmsNorm", [0, None], [2]), ("TinyLlmRmsNorm", [2, None], [3])]
    expected = [*norms, ("TinyLlmSwiglu", [3, None], [4])]
    assert_equal(found, expected, "two norms of the first input, and swiglu with a constant")
    # Any input may vary.
    found = steps_of(lambda x, y: (kernels.swiglu(norm(mx.ones((1, 1, E))), norm(y)),), x, x)
    expected = [("TinyLlmRmsNorm", [1, None], [2]), ("TinyLlmSwiglu", [None, 2], [3])]
    assert_equal([step[:3] for step in found], expected, "a step that reads the second input")


def test_task_2_buffer_lives_until_its_last_reader():
    x = random(1, 1, E)

    def function(x):
        first = norm(x)
        return (kernels.swiglu(first, norm(norm(first))),)

    last_uses = [step[3] for step in steps_of(function, x)]
    hint = "x to live until step 0, the first norm until the last step"
    assert_equal(last_uses, [[0], [], [2], [1, 3]], hint)


def test_task_2_view_shares_its_buffer():
    x = random(1, 1, E)

    def function(x):
        heads = norm(x).reshape(2, E // 2)
        return (kernels.swiglu(norm(heads), heads),)

    steps = [(step[0], step[3]) for step in steps_of(function, x)]
    expected = [("TinyLlmRmsNorm", [0]), ("Reshape", []), ("TinyLlmRmsNorm", [])]
    expected.append(("TinyLlmSwiglu", [1, 2, 3]))
    assert_equal(steps, expected, "array 1 to live as long as its view, array 2")


def test_task_2_outputs_are_kept_and_dead_nodes_dropped():
    x = random(1, 1, E)

    def function(x):
        first = norm(x)
        _, normed = kernels.add_rms_norm(first, x, mx.ones(E), 1e-6)  # the sum is unused
        return first, norm(normed)

    last_uses = [step[3] for step in steps_of(function, x)]
    hint = "outputs 1 and 4 to be kept and the unused sum, 2, to be dropped"
    assert_equal(last_uses, [[], [0, 2], [3]], hint)


@pytest.fixture
def capture_enabled(monkeypatch) -> None:
    """Enables graph capture explicitly, so that an unwritten task raises."""
    monkeypatch.setenv(CAPTURE_VARIABLE, "on")


def test_task_3_captured_function_is_one_bitwise_equal_node(capture_enabled):
    function = block()
    captured = CapturedFunction(function)
    for B, L in [(1, 1), (1, 1), (2, 3), (1, 1)]:
        given = inputs(B, L)
        mx.eval(given)
        actual = captured(*given)
        assert_equal(node_names(actual), ["TinyLlmReplay"], "one replay node")
        assert_same(actual, function(*given), f"{B}×{L}")


def test_task_3_function_is_called_once_per_shape_and_dtype(capture_enabled):
    calls = CallCounter(lambda x: (norm(x, mx.ones(E, x.dtype)),))
    captured = CapturedFunction(calls)
    for dtype, L in [(mx.float32, 1), (mx.float32, 1), (mx.bfloat16, 1), (mx.float32, 2)] * 2:
        x = random(1, L, E).astype(dtype)
        (actual,) = captured(x)
        assert_same_bits(actual, norm(x, mx.ones(E, dtype)), f"{dtype}, {L} tokens")
    assert_equal(calls.count, 3, "3 calls for 3 combinations of shape and dtype")


def test_task_3_capture_can_require_a_repeated_shape(capture_enabled):
    calls = CallCounter(block())
    captured = CapturedFunction(calls, on_first_call=False)
    counts = []
    for B in (1, 2, 1, 1, 2, 2):
        mx.eval(captured(*inputs(B, 1)))
        counts.append(calls.count)
    assert_equal(counts, [1, 2, 3, 3, 4, 4], "a capture only when a shape repeats")


def test_task_3_uncapturable_function_runs_eagerly(capture_enabled):
    function = mlx_only()
    captured = CapturedFunction(function)
    for _ in range(3):
        given = inputs(1, 2)
        assert_same(captured(*given), function(*given), "MLX operations")


def test_task_3_external_buffer_is_written_in_place(capture_enabled):
    def write(x, buffer, offsets):
        return norm(x, mx.ones(E, x.dtype)), kernels.cache_write(buffer, x[None], offsets)

    captured = CapturedFunction(write)
    x = random(1, 2, E).astype(mx.bfloat16)
    buffers = [random(1, 1, 8, E).astype(mx.bfloat16) for _ in range(2)]
    mx.eval(x, buffers)
    for number, offset in ((0, 0), (1, 3), (0, 5), (1, 6)):
        before = mx.array(buffers[number])
        parts = [before[:, :, :offset], x[None], before[:, :, offset + 2 :]]
        expected = mx.concatenate(parts, axis=2)
        del parts
        mx.eval(expected)
        del before
        _, buffers[number] = captured(x, buffers[number], mx.array([offset], mx.int32))
        mx.eval(buffers)
        assert_same_bits(buffers[number], expected, f"buffer {number}, tokens at offset {offset}")


@pytest.fixture(scope="module")
def mlx_model():
    mlx_model = tiny_model(mx.bfloat16, hidden_size=128, intermediate_size=256)
    nn.quantize(mlx_model, group_size=64, bits=4)
    mx.eval(mlx_model.parameters())
    return mlx_model


@pytest.fixture(scope="module")
def model(mlx_model) -> Qwen3ModelWeek2:
    return Qwen3ModelWeek2(mlx_model, enable_flash_attn=True)


@pytest.mark.parametrize("B", [1, 2])
def test_task_4_model_steps_are_captured(capture_enabled, monkeypatch, model, B):
    caches = {setting: model.create_kv_cache() for setting in ("on", "off")}
    replays = []
    for offset, token in enumerate((3, 1, 4, 1)):
        logits = {}
        for setting, cache in caches.items():
            monkeypatch.setenv(CAPTURE_VARIABLE, setting)
            logits[setting] = model(mx.array([[token]] * B), offset, cache)
        replays.append(node_names([logits["on"]]).count("TinyLlmReplay"))
        assert_same_bits(logits["on"], logits["off"], f"logits of step {offset}")
    assert_equal(replays, [0, 1, 1, 1], "one node for all layers once the caches have capacity")


def test_task_4_layers_without_flash_attention_run_eagerly(capture_enabled, monkeypatch, mlx_model):
    """Layers with plain MLX attention have no step plan to capture."""
    model = Qwen3ModelWeek2(mlx_model)
    caches = {setting: model.create_kv_cache() for setting in ("on", "off")}
    for offset, token in enumerate((3, 1)):
        logits = {}
        for setting, cache in caches.items():
            monkeypatch.setenv(CAPTURE_VARIABLE, setting)
            try:
                logits[setting] = model(mx.array([[token]]), offset, cache)
            except TypeError as error:
                pytest.fail(f"expected eager execution of layers without a plan, got: {error}")
        names = node_names([logits["on"]])
        assert "TinyLlmReplay" not in names, f"expected no captured node, got {names}"
        assert_same_bits(logits["on"], logits["off"], f"logits of step {offset}")
