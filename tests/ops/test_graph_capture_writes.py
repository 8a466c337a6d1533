"""`CapturedFunction`: in-place writes to unshared buffers."""

import mlx.core as mx
import pytest

from tests.ops.captured_functions import CallCounter, E, assert_same, capture, inputs
from tests.support import assert_same_bits, random
from tiny_llm import kernels
from tiny_llm.kernels.graph_capture import CapturedFunction

# Graph capture supports only the CPU.
pytestmark = pytest.mark.usefixtures("on_cpu")

NORM = mx.ones(E, mx.bfloat16)
OTHER = mx.new_stream(mx.cpu)
mx.eval(NORM)


def norm(x, stream=mx.cpu):
    return kernels.rms_norm(x, NORM, 1e-6, stream=stream)


def returns_its_inputs(x, buffer):
    return x, buffer


def uses_two_streams(x, buffer):
    return (norm(norm(x, OTHER)),)


def writes_buffer_read_later(x, buffer):
    return kernels.cache_write(buffer, x[None], [0]), norm(buffer)


def writes_buffer_with_later_view(x, buffer):
    view = buffer[:, :, :2].swapaxes(1, 2)
    return kernels.cache_write(buffer, x[None], [0]), norm(view)


def writes_returned_buffer(x, buffer):
    return kernels.cache_write(buffer, x[None], [0]), buffer[:, :, :3]


def writes_overlapping_slice(x, buffer):
    return (kernels.cache_write(buffer, buffer[:, :, 1:4], [2]),)


def writes_view(x, buffer):
    return (kernels.cache_write(buffer[:, :, :6], x[None], [2]),)


def writes_intermediate(x, buffer):
    return (kernels.cache_write(norm(buffer), x[None], [2]),)


def writes_constant(x, buffer):
    return (kernels.cache_write(mx.zeros((1, 1, 9, E), x.dtype), x[None], [0]),)


UNCAPTURABLE = [returns_its_inputs, uses_two_streams, writes_buffer_read_later, writes_view]
UNCAPTURABLE += [writes_buffer_with_later_view, writes_returned_buffer, writes_overlapping_slice]
UNCAPTURABLE += [writes_intermediate, writes_constant]


def reads_then_writes(x, buffer):
    view = buffer[:, :, :2].swapaxes(1, 2)
    return norm(view), norm(buffer), kernels.cache_write(buffer, x[None], [0])


def writes_twice_and_returns_a_view(x, buffer):
    first = kernels.cache_write(buffer, x[None], [0])
    second = kernels.cache_write(first, norm(x)[None], [3])
    return x, second[:, :, 2:6], second.swapaxes(1, 2)


@pytest.mark.parametrize("function", UNCAPTURABLE)
def test_uncapturable_functions_run_eagerly(function):
    calls = CallCounter(function)
    captured = CapturedFunction(calls)
    x, buffer = inputs(1, 4)[0], random(1, 1, 9, E).astype(mx.bfloat16)
    for _ in range(4):
        assert_same(captured(x, buffer), function(x, buffer), function.__name__)
    assert calls.count == 5, "expected a call per iteration and one for the capture attempt"


@pytest.mark.parametrize("function", [reads_then_writes, writes_twice_and_returns_a_view])
def test_functions_with_writes_and_reads(function):
    calls = CallCounter(function)
    captured = CapturedFunction(calls)
    x, buffer = inputs(1, 4)[0], random(1, 1, 9, E).astype(mx.bfloat16)
    for _ in range(3):
        expected = function(x, buffer)
        mx.eval(expected)
        assert_same(captured(x, buffer + 0), expected, function.__name__)
    assert calls.count == 1


def write(x, buffer, offsets):
    """Writes x into a buffer, then reads and transposes the new contents."""
    new = kernels.cache_write(buffer, x[None], offsets)
    query = x[None, :, :1]
    return kernels.flash_attention(query, new, new), new


def plain_write(x, buffer, offset):
    """MLX reference of the captured function."""
    new = mx.concatenate([buffer[:, :, :offset], x[None], buffer[:, :, offset + 2 :]], axis=2)
    query = x[None, :, :1]
    return kernels.flash_attention(query, new, new), new


def step(C: int = 1000):
    """Two new tokens and a buffer for C tokens, with three bfloat16 heads."""
    x, buffer = random(3, 2, E).astype(mx.bfloat16), random(1, 3, C, E).astype(mx.bfloat16)
    mx.eval(x, buffer)
    return x, buffer


def copied_bytes(function):
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    function()
    return mx.get_peak_memory() - before


def test_unshared_buffer_is_written_in_place():
    captured = CapturedFunction(write)
    x, buffer = step()
    expected = buffer
    for offset in (5, 0, 998, 17, 300):
        expected_out, expected = plain_write(x, expected, offset)
        mx.eval(expected_out, expected)
        state = {"buffer": buffer}
        del buffer

        def run(state=state, offset=offset):
            offsets = mx.array([offset], mx.int32)
            state["out"], state["buffer"] = captured(x, state.pop("buffer"), offsets)
            mx.eval(state["out"])

        copied = copied_bytes(run)
        assert copied < 100_000, f"copied {copied / 1e3:.0f} kB instead of two tokens"
        buffer = state["buffer"]
        assert_same_bits(state["out"], expected_out, f"attention at offset {offset}")
        assert_same_bits(buffer, expected, f"buffer at offset {offset}")


@pytest.mark.parametrize("keep", ["array", "slice", "lazy slice", "lazy sum"])
def test_shared_buffer_is_copied(keep):
    captured = CapturedFunction(write)
    x, buffer = step()
    offsets = mx.array([7], mx.int32)
    capture(captured, x, buffer, offsets)
    kept = {"array": buffer, "lazy sum": buffer.sum()}.get(keep, buffer[:, :, :10])
    expected = {"lazy sum": buffer.sum()}.get(keep, kept + 0)
    mx.eval(expected)
    if keep == "slice":
        mx.eval(kept)
    out, new = captured(x, buffer, offsets)
    del buffer
    mx.eval(out, new)
    assert_same_bits(kept, expected, f"old buffer, kept as {keep}")
    assert_same_bits(new[:, :, 7:9], x[None], "written tokens")


def test_alternating_buffers():
    """Writes to 20 buffers in turn, more than the 8 executables in the cache."""
    captured = CapturedFunction(write)
    x, _ = step(10)
    buffers = [step(10)[1] for _ in range(20)]
    expected_buffers = list(buffers)
    for offset in (0, 5, 8, 3):
        for i in range(20):
            _, buffers[i] = captured(x, buffers[i], mx.array([offset], mx.int32))
            mx.eval(buffers[i])
            _, expected_buffers[i] = plain_write(x, expected_buffers[i], offset)
    for i in range(20):
        assert_same_bits(buffers[i], expected_buffers[i], f"buffer {i}")


def test_buffer_of_any_layout():
    captured = CapturedFunction(write)
    x, buffer = step(10)
    offsets = mx.array([4], mx.int32)
    capture(captured, x, buffer, offsets)
    by_token = mx.contiguous(buffer.swapaxes(1, 2)).swapaxes(1, 2)
    part = mx.concatenate([buffer, buffer], axis=2)[:, :, :10]
    for other in (by_token, part, mx.broadcast_to(buffer[:, :1], buffer.shape)):
        expected = plain_write(x, other, 4)
        assert_same(captured(x, other, offsets), expected, "another layout")


def test_steps_evaluated_together():
    captured = CapturedFunction(write)
    x, buffer = step(10)
    capture(captured, x, buffer, mx.array([0], mx.int32))
    expected_buffer, out, expected = buffer, [], []
    for offset in (0, 2, 4, 1):
        attended, buffer = captured(x, buffer, mx.array([offset], mx.int32))
        out.append(attended)
        attended, expected_buffer = plain_write(x, expected_buffer, offset)
        expected.append(attended)
    assert_same([*out, buffer], [*expected, expected_buffer], "steps in one graph")


def test_evaluation_through_the_buffer():
    """MLX may evaluate the node through any of its outputs."""
    captured = CapturedFunction(write)
    x, buffer = step()
    expected = plain_write(x, plain_write(x, buffer, 3)[1], 9)[1]
    mx.eval(expected, captured(x, buffer, mx.array([0], mx.int32)))
    state = {"buffer": buffer + 0}
    mx.eval(state)
    for offset in (3, 9):

        def run(offset=offset):
            _, state["buffer"] = captured(x, state.pop("buffer"), mx.array([offset], mx.int32))
            mx.eval(state["buffer"])

        assert copied_bytes(run) < 100_000
    assert_same_bits(state["buffer"], expected, "buffer")
