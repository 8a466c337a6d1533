"""`CapturedFunction` of a Gated DeltaNet: states are updated in place."""

import mlx.core as mx
import pytest

from tests.ops.captured_functions import CallCounter, assert_same, node_names
from tests.ops.recurrent_problems import Batch
from tests.support import assert_same_bits, random
from tiny_llm import kernels
from tiny_llm.kernels.graph_capture import CapturedFunction

# Graph capture supports only the CPU.
pytestmark = pytest.mark.usefixtures("on_cpu")

H_k, H_v, D_k, D_v, K, SLOTS = 1, 2, 64, 96, 4, 8
C = 2 * H_k * D_k + H_v * D_v
TAPS, NORM = random(C, K).astype(mx.bfloat16), random(D_v)
A_LOG, DT_BIAS = random(H_v), random(H_v)


def delta_net(x, gates, z, conv_states, states, cu_seqlens, read_slots, write_slots):
    """The operations between a layer's projections: x B×L×C with T = B·L tokens."""
    slots = (cu_seqlens, read_slots, write_slots)
    qkv, conv_states = kernels.causal_conv1d(x.reshape(-1, C), TAPS, conv_states, *slots)
    a, b = gates[:, :H_v], gates[:, H_v:]
    o, states = kernels.gated_delta_rule(qkv, a, b, A_LOG, DT_BIAS, states, *slots, H_k)
    y = kernels.gated_rms_norm(o, z, NORM, 1e-6)
    return kernels.sigmoid_gate(y, z), conv_states, states


def step(T: int) -> tuple[mx.array, mx.array, mx.array]:
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


def test_steps_equal_uncaptured_operations():
    calls = CallCounter(delta_net)
    recorded = CapturedFunction(calls)
    mine = theirs = new_states()
    for batch in STEPS:
        given, slots = step(4), batch.arrays.values()
        out, *mine = recorded(*given, *mine, *slots)
        expected, *theirs = delta_net(*given, *theirs, *slots)
        assert_same((out, *mine), (expected, *theirs), str(batch))
    assert calls.count == 1


def test_states_are_written_in_place():
    recorded = CapturedFunction(delta_net)
    state = {"pair": new_states()}
    mx.eval(recorded(*step(4), *new_states(), *STEPS[0].arrays.values()))
    size = sum(array.nbytes for array in state["pair"])
    for batch in STEPS:
        given, slots = step(4), batch.arrays.values()
        mx.eval(given, list(slots))
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        out, *state["pair"] = recorded(*given, *state.pop("pair"), *slots)
        assert node_names([out]) == ["TinyLlmReplay"]
        mx.eval(out, *state["pair"])
        assert mx.get_peak_memory() - before < size / 4


def test_shared_states_are_copied():
    recorded = CapturedFunction(delta_net)
    conv_states, states = new_states()
    copies = conv_states + 0, states + 0
    mx.eval(copies)
    for _ in range(2):
        mx.eval(recorded(*step(4), conv_states, states, *STEPS[0].arrays.values()))
    assert_same_bits(conv_states, copies[0], "convolution's states")
    assert_same_bits(states, copies[1], "states")


def test_states_passed_twice_run_eagerly():
    """An input that is written in place must not be passed twice: no capture."""

    def reads_what_it_writes(x, states):
        slots = Batch((2,), (0,), (0, 1)).arrays.values()
        return kernels.causal_conv1d(x.squeeze(0), states.squeeze(1).swapaxes(0, 1), states, *slots)

    calls = CallCounter(reads_what_it_writes)
    recorded = CapturedFunction(calls)
    x, states = random(1, 2, 8), random(2, 1, 8)
    for _ in range(3):
        assert_same(recorded(x, states), reads_what_it_writes(x, states), "eager")
    assert calls.count == 4, "expected a call per iteration and one for the capture attempt"
