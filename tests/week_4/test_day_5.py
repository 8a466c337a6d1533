"""Week 4, day 5: dynamic work claiming; fused norms, RoPE and SwiGLU."""

import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest

from tests.support import EPSILON, as_numpy, assert_close, assert_equal, assert_same_bits, random
from tests.week_4.kernel_selection import kernel_fixture
from tiny_llm import RMSNorm, RoPE, kernels
from tiny_llm.basics import silu

EPS = 1e-6
# Row sizes: below a SIMD vector, multiples of it, and multiples plus a remainder.
SIZES = [1, 7, 64, 130, 1023]


vectors = kernel_fixture("TINY_LLM_FUSED", "vectors")


@pytest.fixture
def dynamic_schedule(on_cpu):
    kernels.extension().set_schedule("dynamic")
    yield
    kernels.extension().set_schedule("")


def claims(threads: int, chunks: int, stalled: bool = False) -> list[list[int]]:
    """Chunks claimed by each thread; a thread of an earlier job claims none."""
    late, *by_thread = kernels.extension().simulate_schedule("dynamic", threads, chunks, stalled)
    assert late == [], f"expected no chunk for a thread that missed its job, got {late}"
    return by_thread


@pytest.mark.parametrize(("threads", "chunks"), [(1, 5), (2, 8), (4, 40), (4, 3), (3, 0)])
def test_task_1_each_chunk_is_computed_once(threads, chunks):
    claimed = sorted(chunk for mine in claims(threads, chunks) for chunk in mine)
    assert claimed == list(range(chunks)), f"expected {chunks} chunks once each, got {claimed}"


def test_task_1_own_range_is_claimed_first():
    threads, chunks = 4, 32
    for thread, mine in enumerate(claims(threads, chunks)):
        begin, end = chunks * thread // threads, chunks * (thread + 1) // threads
        own = [chunk for chunk in mine if begin <= chunk < end]
        assert mine[: len(own)] == sorted(own), (
            f"expected thread {thread} to claim its range {begin} … {end - 1} first, got {mine}"
        )
    stalled, *others = claims(3, 30, stalled=True)
    assert len(stalled) <= 1, f"expected the other threads to claim the rest, got {stalled}"
    assert sum(map(len, others)) >= 29


CHECKSUM_PROGRAM = """
import mlx.core as mx
from tiny_llm import kernels
mx.set_default_device(mx.cpu)
kernels.extension().set_schedule({schedule!r})
assert {threads} in (None, kernels.extension().num_threads())
mx.random.seed(1)
x = mx.random.normal((300, 257)).astype(mx.bfloat16)
total, normed = kernels.add_rms_norm(x, x * 3, x[0], 1e-6)
print(kernels.swiglu(normed, total).view(mx.uint16).astype(mx.int64).sum().item())
"""


def test_task_1_thread_count_changes_no_bits(dynamic_schedule, monkeypatch):
    def run(schedule: str, threads: int | None) -> str:
        if threads is not None:
            monkeypatch.setenv("TINY_LLM_NUM_THREADS", str(threads))
        program = CHECKSUM_PROGRAM.format(schedule=schedule, threads=threads)
        return subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout

    expected = run("static", 1)
    assert_equal(run("dynamic", 3), expected, f"checksum {expected} on three threads")


@pytest.mark.parametrize("D", SIZES)
def test_task_2_sum_and_norm(vectors, dtype, D):
    x, y, weight = random(5, D, dtype=dtype), random(5, D, dtype=dtype), random(D, dtype=dtype)
    total, normed = kernels.add_rms_norm(x, y, weight, EPS)
    assert_same_bits(total, x + y, "residual sum")
    expected = RMSNorm(D, weight, EPS)(x + y)
    assert_close(normed, expected, "norm of the sum, compared with Week 1", ulps=4)


def test_task_2_norm_without_residual(vectors, dtype):
    wide, weight = random(2, 3, 300, dtype=dtype, scale=40), random(130, dtype=dtype)
    x = wide[..., 7:137]  # strided rows
    expected = RMSNorm(130, weight, EPS)(x)
    assert_close(kernels.rms_norm(x, weight, EPS), expected, "norm, compared with Week 1", ulps=2)
    in_float32 = random(130)
    actual = kernels.rms_norm(x, in_float32, EPS)
    expected = RMSNorm(130, in_float32, EPS)(x.astype(mx.float32)).astype(dtype)
    assert_close(actual, expected, "norm with a float32 weight, and Week 1's in float32", ulps=2)


def test_task_2_rows_are_batch_invariant(vectors):
    x, weight = random(300, 130, dtype=mx.bfloat16), random(130, dtype=mx.bfloat16)
    together = kernels.rms_norm(x, weight, EPS)
    alone = mx.concatenate([kernels.rms_norm(x[m][None], weight, EPS) for m in (0, 17, 299)])
    assert_same_bits(together[mx.array([0, 17, 299])], alone, "rows computed separately")


@pytest.mark.parametrize("D", [2, 8, 34, 128])
@pytest.mark.parametrize("norm", [None, "own dtype", "float32"], ids=str)
def test_task_3_equals_week_1_rope(vectors, dtype, D, norm):
    B, L, H = 2, 3, 4
    x = random(B, L, H, D, dtype=dtype)
    weight = random(D, dtype=mx.float32 if norm == "float32" else dtype)
    rope = RoPE(D, 64)
    positions = [slice(5, 5 + L), slice(40, 40 + L)]
    actual = kernels.qk_norm_rope(x, weight if norm else None, EPS, *rope.cos_sin(positions, B, L))
    normed = kernels.rms_norm(x, weight, EPS) if norm else x
    expected = mx.contiguous(rope(normed, positions).swapaxes(1, 2))
    assert_same_bits(actual, expected, "norm and RoPE, compared with Week 1 head by head")


def test_task_3_rotation_by_a_right_angle(vectors):
    x = mx.array([1.0, 2, 3, 4, 5, 6]).reshape(1, 1, 1, 6)
    cos, sin = mx.zeros((1, 1, 3)), mx.ones((1, 1, 3))
    actual = kernels.qk_norm_rope(x, None, EPS, cos, sin).reshape(-1).tolist()
    assert actual == [-4, -5, -6, 1, 2, 3], f"expected (x1, x2) -> (-x2, x1), got {actual}"


@pytest.mark.parametrize("I", SIZES)
def test_task_4_equals_week_1(vectors, dtype, I):
    gate, up = random(3, I, dtype=dtype, scale=6), random(3, I, dtype=dtype)
    assert_close(kernels.swiglu(gate, up), silu(gate) * up, "silu(gate) · up", ulps=1)


def test_task_4_large_numbers_do_not_overflow(vectors, dtype):
    gate = mx.array([-20000.0, -200, -90, -1, 0, 1, 90, 200, 20000]).astype(dtype)
    up = mx.full(gate.shape, 0.5, dtype)
    assert_close(kernels.swiglu(gate, up), silu(gate) * up, "silu(gate) · up", ulps=1)


@pytest.mark.parametrize("half", [mx.float16, mx.bfloat16], ids=["float16", "bfloat16"])
def test_task_4_negative_gates_do_not_cancel(vectors, half):
    gate = mx.arange(-9, 0, 0.01).astype(half)
    actual, expected = as_numpy(kernels.swiglu(gate, mx.ones_like(gate))), as_numpy(silu(gate))
    ulps = np.abs(actual / expected - 1) / EPSILON[half]
    worst = ulps.argmax()
    assert ulps[worst] <= 2, (
        f"gate {gate[worst].item()}: expected {expected[worst]:.4g}, got {actual[worst]:.4g}; "
        "1 - sigmoid(|x|) cancels for negative x"
    )


def test_task_4_unknown_variant_is_rejected(vectors, monkeypatch):
    gate = random(2, 8, dtype=mx.bfloat16)
    mx.eval(kernels.swiglu(gate, gate))
    monkeypatch.setenv("TINY_LLM_FUSED", "fast")
    with pytest.raises(ValueError, match='TINY_LLM_FUSED must be loops or vectors, got "fast"'):
        mx.eval(kernels.swiglu(gate, gate))
