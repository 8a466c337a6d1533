"""`CapturedFunction`: in-place writes to unshared buffers."""

import mlx.core as mx
import pytest

from tests.ops.captured_functions import CallCounter, E, assert_same, captured, inputs
from tests.support import assert_same_bits, random
from tiny_llm import kernels
from tiny_llm.kernels.graph_capture import CapturedFunction

# Captured nodes are CPU-only.
pytestmark = pytest.mark.usefixtures("on_cpu")

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
def test_uncapturable_functions_run_eagerly(function):
    calls = CallCounter(function)
    recorded = CapturedFunction(calls)
    x, buffer = inputs(1, 4)[0], random(1, 1, 9, E).astype(mx.bfloat16)
    for _ in range(4):
        assert_same(recorded(x, buffer), function(x, buffer), function.__name__)
    assert calls.count == 5, "each time, and once to see that it cannot be recorded"


@pytest.mark.parametrize("function", [reads_before_it_writes, writes_twice_and_returns_a_view])
def test_functions_with_writes_and_reads(function):
    calls = CallCounter(function)
    recorded = CapturedFunction(calls)
    x, buffer = inputs(1, 4)[0], random(1, 1, 9, E).astype(mx.bfloat16)
    for _ in range(3):
        expected = function(x, buffer)
        mx.eval(expected)
        assert_same(recorded(x, buffer + 0), expected, function.__name__)
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
    """Two tokens of three heads, and a buffer of C tokens: 3·C·E·2 bytes."""
    x, buffer = random(3, 2, E).astype(mx.bfloat16), random(1, 3, C, E).astype(mx.bfloat16)
    mx.eval(x, buffer)
    return x, buffer


def copied_bytes(function):
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    function()
    return mx.get_peak_memory() - before


def test_unshared_buffer_is_written_in_place():
    recorded = CapturedFunction(write)
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
def test_shared_buffer_is_copied(keep):
    recorded = CapturedFunction(write)
    x, buffer = step()
    offsets = mx.array([7], mx.int32)
    captured(recorded, x, buffer, offsets)
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


def test_alternating_buffers():
    """More buffers than program variants per capture."""
    recorded = CapturedFunction(write)
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
    recorded = CapturedFunction(write)
    x, buffer = step(10)
    offsets = mx.array([4], mx.int32)
    captured(recorded, x, buffer, offsets)
    by_token = mx.contiguous(buffer.swapaxes(1, 2)).swapaxes(1, 2)
    part = mx.concatenate([buffer, buffer], axis=2)[:, :, :10]
    for other in (by_token, part, mx.broadcast_to(buffer[:, :1], buffer.shape)):
        expected = plain_write(x, other, 4)
        assert_same(recorded(x, other, offsets), expected, "another layout")


def test_steps_evaluated_together():
    recorded = CapturedFunction(write)
    x, mine = step(10)
    captured(recorded, x, mine, mx.array([0], mx.int32))
    theirs, out, expected = mine, [], []
    for place in (0, 2, 4, 1):
        attended, mine = recorded(x, mine, mx.array([place], mx.int32))
        out.append(attended)
        attended, theirs = plain_write(x, theirs, place)
        expected.append(attended)
    assert_same([*out, mine], [*expected, theirs], "in one graph")


def test_only_the_buffer_is_evaluated():
    """MLX may evaluate the node through any of its outputs."""
    recorded = CapturedFunction(write)
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
