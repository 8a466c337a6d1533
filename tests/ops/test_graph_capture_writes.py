"""`CapturedFunction`: in-place writes to unshared buffers and Gated DeltaNet states."""

import mlx.core as mx
import pytest

from tests.ops.captured_functions import CallCounter, E, assert_same, capture, inputs, node_names
from tests.ops.recurrent_problems import Batch
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


def write_at(buffer, tokens, offset=0):
    return kernels.cache_write(buffer, tokens, [offset])


def first_tokens(buffer):
    return buffer[:, :, :2].swapaxes(1, 2)


# Functions of x (1×4×E) and a buffer (1×1×9×E) that run eagerly.
UNCAPTURABLE = {
    "returns its inputs": lambda x, buffer: (x, buffer),
    "two streams": lambda x, buffer: (norm(norm(x, OTHER)),),
    "buffer read later": lambda x, buffer: (write_at(buffer, x[None]), norm(buffer)),
    "view read later": lambda x, buffer: (write_at(buffer, x[None]), norm(first_tokens(buffer))),
    "returned buffer": lambda x, buffer: (write_at(buffer, x[None]), buffer[:, :, :3]),
    "overlapping slice": lambda x, buffer: (write_at(buffer, buffer[:, :, 1:4], 2),),
    "written view": lambda x, buffer: (write_at(buffer[:, :, :6], x[None], 2),),
    "written intermediate": lambda x, buffer: (write_at(norm(buffer), x[None], 2),),
    "written constant": lambda x, buffer: (write_at(mx.zeros((1, 1, 9, E), x.dtype), x[None]),),
}


def reads_then_writes(x, buffer):
    return norm(first_tokens(buffer)), norm(buffer), write_at(buffer, x[None])


def writes_twice_and_returns_a_view(x, buffer):
    second = write_at(write_at(buffer, x[None]), norm(x)[None], 3)
    return x, second[:, :, 2:6], second.swapaxes(1, 2)


@pytest.mark.parametrize("name", UNCAPTURABLE)
def test_uncapturable_functions_run_eagerly(name):
    calls = CallCounter(UNCAPTURABLE[name])
    captured = CapturedFunction(calls)
    x, buffer = inputs(1, 4)[0], random(1, 1, 9, E).astype(mx.bfloat16)
    for _ in range(4):
        assert_same(captured(x, buffer), calls.function(x, buffer), name)
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


@pytest.mark.parametrize("read", [0, 1], ids=["output", "buffer"])
def test_unshared_buffer_is_written_in_place(read):
    """MLX may evaluate the node through any of its outputs."""
    captured = CapturedFunction(write)
    x, buffer = step()
    expected, state = buffer + 0, {"buffer": buffer}
    del buffer
    for offset in (5, 0, 998, 17, 300):
        expected_out, expected = plain_write(x, expected, offset)
        mx.eval(expected_out, expected)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        outputs = captured(x, state.pop("buffer"), mx.array([offset], mx.int32))
        mx.eval(outputs[read])
        copied = mx.get_peak_memory() - before
        assert copied < 100_000, f"copied {copied / 1e3:.0f} kB instead of two tokens"
        out, state["buffer"] = outputs
        del outputs
        assert_same_bits(out, expected_out, f"attention at offset {offset}")
        assert_same_bits(state["buffer"], expected, f"buffer at offset {offset}")


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


H_k, H_v, D_k, D_v, K, SLOTS = 1, 2, 64, 96, 4, 8
C = 2 * H_k * D_k + H_v * D_v
TAPS, GATED_NORM = random(C, K).astype(mx.bfloat16), random(D_v)
A_LOG, DT_BIAS = random(H_v), random(H_v)


def delta_net(x, gates, z, conv_states, states, cu_seqlens, read_slots, write_slots):
    """The operations between a layer's projections: x B×L×C with T = B·L tokens."""
    slots = (cu_seqlens, read_slots, write_slots)
    qkv, conv_states = kernels.causal_conv1d(x.reshape(-1, C), TAPS, conv_states, *slots)
    a, b = gates[:, :H_v], gates[:, H_v:]
    o, states = kernels.gated_delta_rule(qkv, a, b, A_LOG, DT_BIAS, states, *slots, H_k)
    y = kernels.gated_rms_norm(o, z, GATED_NORM, 1e-6)
    return kernels.sigmoid_gate(y, z), conv_states, states


def delta_step(T: int) -> tuple[mx.array, mx.array, mx.array]:
    x, gates = random(1, T, C).astype(mx.bfloat16), random(T, 2 * H_v).astype(mx.bfloat16)
    return x, gates, random(T, H_v, D_v).astype(mx.bfloat16)


def new_states() -> tuple[mx.array, mx.array]:
    states = random(SLOTS, K - 1, C).astype(mx.bfloat16), random(SLOTS, H_v, D_k, D_v)
    mx.eval(states)
    return states


# Steps of two sequences and four tokens, with various lengths, read slots and write slots.
STEPS = [
    Batch((1, 3), (-1, 4), (0, -1, 4, 5)),
    Batch((2, 2), (0, 5), (1, 0, 5, 6)),
    Batch((3, 1), (1, 4), (-1, -1, 1, 4)),
]


def test_steps_equal_uncaptured_operations_and_write_states_in_place():
    calls = CallCounter(delta_net)
    captured = CapturedFunction(calls)
    mx.eval(captured(*delta_step(4), *new_states(), *STEPS[0].arrays.values()))
    state = {"pair": new_states()}
    theirs = [array + 0 for array in state["pair"]]
    size = sum(array.nbytes for array in theirs)
    for batch in STEPS:
        given, slots = delta_step(4), list(batch.arrays.values())
        expected, *theirs = delta_net(*given, *theirs, *slots)
        mx.eval(given, slots, expected, theirs)
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        out, *state["pair"] = captured(*given, *state.pop("pair"), *slots)
        assert node_names([out]) == ["TinyLlmReplay"]
        mx.eval(out, *state["pair"])
        assert mx.get_peak_memory() - before < size / 4
        assert_same((out, *state["pair"]), (expected, *theirs), str(batch))
    assert calls.count == 1


def test_shared_states_are_copied():
    captured = CapturedFunction(delta_net)
    conv_states, states = new_states()
    copies = conv_states + 0, states + 0
    mx.eval(copies)
    for _ in range(2):
        mx.eval(captured(*delta_step(4), conv_states, states, *STEPS[0].arrays.values()))
    assert_same_bits(conv_states, copies[0], "convolution's states")
    assert_same_bits(states, copies[1], "states")


def test_states_passed_twice_run_eagerly():
    """An input that is written in place must not be passed twice: no capture."""

    def reads_what_it_writes(x, states):
        slots = Batch((2,), (0,), (0, 1)).arrays.values()
        return kernels.causal_conv1d(x.squeeze(0), states.squeeze(1).swapaxes(0, 1), states, *slots)

    calls = CallCounter(reads_what_it_writes)
    captured = CapturedFunction(calls)
    x, states = random(1, 2, 8), random(2, 1, 8)
    for _ in range(3):
        assert_same(captured(x, states), reads_what_it_writes(x, states), "eager")
    assert calls.count == 4, "expected a call per iteration and one for the capture attempt"
