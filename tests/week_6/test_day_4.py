"""Week 6, day 4, optional: causal convolution, delta rule and gated norm."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.models.support import HYBRID, sequence_logits
from tests.ops.recurrent_problems import sigmoid
from tests.support import EPSILON, as_numpy, assert_close, assert_equal, assert_same_bits, random
from tiny_llm.attention.gated_delta import (
    causal_conv1d_sequence,
    delta_gates,
    delta_rule_step,
    gated_rms_norm_reference,
    query_key_value_heads,
)
from tiny_llm.models.checkpoint.dummy import random_checkpoint, random_tensors
from tiny_llm.models.loading import serving_model

pytestmark = pytest.mark.usefixtures("on_cpu")

FLOAT32 = {**HYBRID, "full_attention_interval": 4, "torch_dtype": "float32"}
IDS = [17, 5, 99, 3, 180, 42, 7, 7, 120, 64, 31, 2]


def float32(x: np.ndarray) -> mx.array:
    return mx.array(x.astype(np.float32))


def exact(x: mx.array) -> np.ndarray:
    return as_numpy(x).astype(np.float64)


def test_task_1_example():
    """The convolution's sums are so large that SiLU returns them unchanged."""
    x, weight = mx.array([[1.0], [2], [3]]), mx.array([[1.0, 10, 100]])
    y, _ = causal_conv1d_sequence(x, weight, mx.zeros((2, 1)))
    sums = [100.0, 210.0, 321.0]
    assert_equal(y.flatten().tolist(), sums, "outputs with taps 1, 10, 100, oldest first")
    _, tails = causal_conv1d_sequence(x, weight, mx.array([[-1.0], [0]]))
    actual = [each.flatten().tolist() for each in tails]
    expected = [[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]]
    assert_equal(actual, expected, "the last two inputs after each token")


@pytest.mark.parametrize("shape", [(1, 2, 1), (2, 4, 7), (9, 4, 33), (5, 3, 8)], ids=str)
def test_task_1_equals_numpy(dtype, shape):
    L, K, C = shape
    x, weight = random(L, C, dtype=dtype), random(C, K, dtype=dtype)
    tail = random(K - 1, C, dtype=dtype)
    y, tails = causal_conv1d_sequence(x, weight, tail)
    inputs = np.concatenate([exact(tail), exact(x)])
    total = np.stack([(inputs[t : t + K] * exact(weight).T).sum(0) for t in range(L)])
    assert y.dtype == mx.float32, f"expected sums in float32, got {y.dtype}"
    assert_close(y, float32(total * sigmoid(total)), "SiLU of the sums", ulps=32)
    assert_same_bits(tails[-1], mx.concatenate([tail, x])[L:], "last tail")


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_task_1_chunks_are_bitwise_equal(dtype, chunk):
    x, weight, tail = random(9, 6, dtype=dtype), random(6, 4, dtype=dtype), mx.zeros((3, 6), dtype)
    whole, _ = causal_conv1d_sequence(x, weight, tail)
    rows = []
    for start in range(0, 9, chunk):
        y, tails = causal_conv1d_sequence(x[start : start + chunk], weight, tail)
        rows.append(y)
        tail = tails[-1]
        assert_equal(tail.shape, (3, 6), "a convolution tail of 3 inputs")
    assert_same_bits(mx.concatenate(rows), whole, f"outputs in chunks of {chunk}")


def test_task_2_example():
    beta, gamma = delta_gates(mx.zeros((1, 1)), mx.zeros((1, 1)), mx.zeros(1), mx.zeros(1))
    assert beta.item() == 0.5, f"sigmoid(0): expected 0.5, got {beta.item()}"
    assert_close(gamma, mx.array([[0.5]]), "exp(−exp(0) · softplus(0)) = exp(−ln 2)", ulps=4)
    # exp(100) overflows float32, but softplus(100) is 100 and must be finite.
    _, gamma = delta_gates(mx.array([[100.0]]), mx.zeros((1, 1)), mx.array([-5.0]), mx.zeros(1))
    expected = np.exp(-100 * np.exp(-5.0))
    assert abs(gamma.item() - expected) < 1e-4, f"γ: expected {expected:.4f}, got {gamma.item()}"


def test_task_2_gates_equal_numpy(dtype):
    a, b = random(40, 4, dtype=dtype) * 3, random(40, 4, dtype=dtype) * 3
    A_log, dt_bias = random(4), random(4)
    beta, gamma = delta_gates(a, b, A_log, dt_bias)
    assert_equal((beta.dtype, gamma.dtype), (mx.float32, mx.float32), "β and γ in float32")
    expected = np.exp(-np.exp(exact(A_log)) * np.logaddexp(0, exact(a) + exact(dt_bias)))
    assert_close(beta, float32(sigmoid(exact(b))), "β", ulps=32)
    assert_close(gamma, float32(expected), "γ", ulps=64)


@pytest.mark.parametrize("heads", [(1, 8, 1, 3), (2, 24, 4, 32), (2, 5, 6, 7)], ids=str)
def test_task_2_heads_equal_numpy(heads):
    H_k, D_k, H_v, D_v = heads
    qkv = random(5, 2 * H_k * D_k + H_v * D_v)
    q, k, v = query_key_value_heads(qkv, H_k, D_k, H_v, D_v)
    x = exact(qkv)
    for name, actual, start, scale in (("q", q, 0, D_k**-0.5), ("k", k, H_k * D_k, 1)):
        x_heads = x[:, start : start + H_k * D_k].reshape(5, H_k, D_k)
        unit = x_heads / np.sqrt((x_heads**2).sum(-1, keepdims=True) + 1e-6)
        expected = float32(np.repeat(unit * scale, H_v // H_k, axis=1))
        assert_close(actual, expected, f"{name} T×H_v×D_k", ulps=16)
    assert_same_bits(v, qkv[:, 2 * H_k * D_k :].reshape(5, H_v, D_v), "v T×H_v×D_v")


def test_task_2_value_heads_share_adjacent_key_heads():
    key_heads = [[1.0, 0.0], [0.0, 1.0]]
    qkv = mx.array([[*key_heads[0], *key_heads[1]] * 2 + [0.0] * 4])
    _, k, _ = query_key_value_heads(qkv, 2, 2, 4, 1)
    actual = mx.argmax(k[0], axis=-1).tolist()
    assert_equal(actual, [0, 0, 1, 1], "key heads of value heads 0 to 3")


def test_task_2_small_keys():
    """1e-6 is added to the sum of squares, not to their mean."""
    keys = mx.array([[1e-3] * 8, [0.0] * 8])
    q, k, v = query_key_value_heads(mx.concatenate([keys, keys, keys[:, :1]], axis=1), 1, 8, 1, 1)
    expected = 1e-3 / (8e-6 + 1e-6) ** 0.5
    first = k[0, 0, 0].item()
    assert abs(first - expected) < 1e-4, f"eight 0.001s: expected {expected:.4f}, got {first:.4f}"
    assert k[1].tolist() == [[0.0] * 8], f"a key of zeros: expected zeros, got {k[1].tolist()}"
    assert q.shape == k.shape
    assert v.shape == (2, 1, 1)


def write(state: mx.array, k: Any, v: Any, beta: float = 1, gamma: float = 1) -> mx.array:
    """Writes a value for a key into the state of one head."""
    key, value = mx.array([k], mx.float32), mx.array([v], mx.float32)
    return delta_rule_step(state, key, key, value, mx.array([beta]), mx.array([gamma]))[0]


def read(state: mx.array, k: Any) -> list[float]:
    values: Any = mx.einsum("hkv,k->v", state, mx.array(k, mx.float32)).tolist()
    return [round(float(value), 5) for value in values]


ANNA, BEN, RED, BLUE, GREEN = [1, 0], [0, 1], [1, 0, 0], [0, 0, 1], [0, 1, 0]


def test_task_3_updates_of_the_state():
    state = mx.zeros((1, 2, 3))
    for key, value in ((ANNA, RED), (BEN, BLUE), (ANNA, GREEN)):
        state = write(state, key, value)
    assert_equal(read(state, ANNA), GREEN, "the new value of a rewritten key")
    assert_equal(read(state, BEN), BLUE, "the value of the other key unchanged")
    state = write(mx.zeros((1, 2, 3)), ANNA, [8, 0, 0])
    actual = read(write(state, ANNA, [0, 4, 0], beta=0.25), ANNA)
    assert_equal(actual, [6.0, 1.0, 0.0], "β = 1/4, from [8, 0, 0] to [0, 4, 0]")
    # Decay applies to the stored values before the correction is computed.
    state = write(mx.zeros((1, 2, 3)), ANNA, [8, 0, 0])
    state = write(state, BEN, [0, 0, 5], gamma=0.5)
    for key, expected in ((ANNA, [4.0, 0.0, 0.0]), (BEN, [0.0, 0.0, 5.0])):
        assert_equal(read(state, key), expected, "after a decay of 1/2")
    actual = read(write(state, ANNA, [0, 0, 0], beta=0.5, gamma=0.5), ANNA)
    assert_equal(actual, [1.0, 0.0, 0.0], "half of the decayed value 2")


@pytest.mark.parametrize("shape", [(1, 2, 3), (4, 24, 32), (2, 33, 10)], ids=str)
def test_task_3_sequence_equals_numpy(shape):
    H, D_k, D_v = shape
    T = 20
    q, k, v = random(T, H, D_k), random(T, H, D_k), random(T, H, D_v)
    k = k / mx.linalg.norm(k, axis=-1, keepdims=True)
    beta, gamma = mx.sigmoid(random(T, H)), mx.sigmoid(random(T, H) + 2)
    state, expected_state, outputs, expected = mx.zeros(shape), np.zeros(shape), [], []
    for t in range(T):
        state, o = delta_rule_step(state, q[t], k[t], v[t], beta[t], gamma[t])
        outputs.append(o)
        S = expected_state * exact(gamma[t])[:, None, None]
        delta = exact(beta[t])[:, None] * (exact(v[t]) - np.einsum("hkv,hk->hv", S, exact(k[t])))
        expected_state = S + exact(k[t])[:, :, None] * delta[:, None]
        expected.append(np.einsum("hkv,hk->hv", expected_state, exact(q[t])))
    assert_close(state, float32(expected_state), f"state after {T} tokens", ulps=64)
    assert_close(mx.stack(outputs), float32(np.stack(expected)), "outputs T×H_v×D_v", ulps=64)


def exact_norm(o: mx.array, z: mx.array, weight: mx.array) -> np.ndarray:
    normed = exact(o) / np.sqrt((exact(o) ** 2).mean(-1, keepdims=True) + 1e-6)
    return normed * exact(weight) * exact(z) * sigmoid(exact(z))


@pytest.mark.parametrize("shape", [(1, 1, 4), (7, 4, 32), (3, 2, 65)], ids=str)
def test_task_4_gated_norm_equals_numpy(dtype, shape):
    o, z, weight = random(*shape), random(*shape, dtype=dtype) * 3, random(shape[-1], dtype=dtype)
    actual, expected = gated_rms_norm_reference(o, z, weight, 1e-6), exact_norm(o, z, weight)
    assert actual.dtype == dtype, f"expected the gate's dtype, {dtype}, got {actual.dtype}"
    # 16-bit results are computed in float32 and rounded once, so the error is half an ulp. In
    # float32, the rounding errors of all operations add up.
    ulps = 16 if dtype == mx.float32 else 0.51
    assert_close(actual, float32(expected), "RMSNorm(o) · weight · SiLU(z)", ulps=ulps)


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_task_4_gated_norm_rounds_once(half):
    o, z, weight = random(64, 4, 32), random(64, 4, 32, dtype=half) * 3, random(32, dtype=half)
    actual = exact(gated_rms_norm_reference(o, z, weight, 1e-6))
    expected = exact_norm(o, z, weight)
    # Of each number, not of the largest: rounding it to `half` errs by at most EPSILON / 2.
    ulps = np.abs(actual - expected) / np.maximum(np.abs(expected), 1e-3) / EPSILON[half]
    worst = np.unravel_index(ulps.argmax(), ulps.shape)
    assert ulps.max() < 0.51, (
        f"expected {expected[worst]:.6g}, got {actual[worst]:.6g}, {ulps.max():.2f} units in the "
        "last place away: round once, after the gate"
    )


def test_task_4_logits_equal_mlx_lm():
    from mlx_lm.models import qwen3_5

    tensors, _ = random_tensors(FLOAT32)
    theirs = qwen3_5.TextModel(qwen3_5.TextModelArgs.from_dict(FLOAT32))
    theirs.load_weights(list(tensors.items()))
    [expected] = theirs(mx.array([IDS]))
    model = serving_model("hybrid", random_checkpoint(FLOAT32), 16, "reference")
    assert_close(sequence_logits(model, IDS), expected, "logits", ulps=1024)


def test_task_4_logits_of_chunks_and_kernels():
    checkpoint = random_checkpoint(FLOAT32)
    model = serving_model("hybrid", checkpoint, 16, "reference")
    whole = sequence_logits(model, IDS)
    for ends in ([1, 2, 7, 12], list(range(1, 13))):
        chunked = sequence_logits(model, IDS, ends)
        assert_close(chunked, whole, f"logits of chunks that end at {ends}", ulps=256)
    kernels = sequence_logits(serving_model("hybrid", checkpoint, 16, "paged"), IDS)
    assert_close(kernels, whole, "logits with the extension's kernels", ulps=1024)
