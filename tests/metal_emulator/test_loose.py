"""The "loose" arithmetic mode: results vary only within what Metal permits."""

# ruff: noqa: E501 (lines of LLVM IR)

import numpy as np
import pytest

from tests.metal.support import NO_CLANG
from tools.metal_emulator import Library, MetalFault, has_clang
from tools.metal_emulator.contraction import choose_contraction

from .support import KERNELS

SEEDS = range(12)


@pytest.fixture(scope="module")
def library():
    if not has_clang():
        pytest.skip(NO_CLANG)
    return Library(KERNELS / "loose.metal")


def run(library, kernel, *inputs, count=32, mode="loose", seed=1, threads=32):
    out = np.full(count, np.nan, np.float32)
    grid, group = (count, 1, 1), (threads, 1, 1)
    library.launch(kernel, [*inputs, out], grid_threads=grid, threads=group, mode=mode, seed=seed)
    return out


def random_floats(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def test_order_dependent_sum_is_detected(library):
    """In lane order, 1s added to 2^24 are rounded away; other orders keep some."""
    x = np.ones(32, np.float32)
    x[0], x[31] = 2**24, -(2**24)
    assert set(run(library, "sum", x, mode="plain")) == {0.0}
    found = {float(run(library, "sum", x, seed=seed)[0]) for seed in SEEDS}
    assert len(found) > 3
    assert found <= {float(n) for n in range(61)}, (
        "expected the rounded sum to change by 0, 1 or 2 with each added 1"
    )


def test_sums_stay_within_error_bound(library):
    x = random_floats(32)
    exact = x.astype(np.float64).sum()
    results = [run(library, "sum", x, seed=seed) for seed in SEEDS]
    for result in results:
        assert len(set(result.tolist())) == 1, "expected the same sum in all lanes"
        assert abs(result[0] - exact) <= 31 * 2.0**-24 * np.abs(x).sum()
    assert len({float(result[0]) for result in results}) > 1


def test_matrix_products_use_another_summation_order(library):
    x = random_floats(192)
    a, b, c = (part.reshape(8, 8).astype(np.float64) for part in np.split(x, 3))
    bound = 2.0**-24 * 10 * (np.abs(a) @ np.abs(b) + np.abs(c))
    results = [
        run(library, "product", x, count=64, seed=seed, threads=64).reshape(8, 8) for seed in SEEDS
    ]
    assert all((np.abs(result - (a @ b + c)) <= bound).all() for result in results)
    assert len({result.tobytes() for result in results}) > 3


def test_multiply_add_may_be_fused(library):
    x = random_floats(32)
    square = x * x
    exact = (x.astype(np.float64) ** 2 - square).astype(np.float32)
    assert not run(library, "difference", x, square, mode="plain").any()
    fused = 0
    for seed in SEEDS:
        result = run(library, "difference", x, square, seed=seed)
        if result.any():
            np.testing.assert_array_equal(result, exact)
            fused += 1
    assert 0 < fused < len(SEEDS)


def test_functions_err_by_at_most_four_ulp(library):
    x = np.concatenate([random_floats(29), np.float32([-np.inf, np.inf, np.nan])])
    exact = np.exp(x.astype(np.float64)).astype(np.float32)
    off = set()
    for seed in SEEDS:
        result = run(library, "exponential", x, seed=seed)
        np.testing.assert_array_equal(result[29:], [0, np.inf, np.nan])
        off |= set((result[:29].view(np.int32) - exact[:29].view(np.int32)).tolist())
        again = run(library, "exponential", x, seed=seed)
        np.testing.assert_array_equal(result.view(np.int32), again.view(np.int32))
    # The loose mode adds up to 4 ulp, the C library's rounding up to 1 ulp.
    assert set(range(-4, 5)) <= off <= set(range(-5, 6))


def test_denormals_are_flushed(library):
    x = np.float32([1e-38, 1e-30, 1e-44, 1.0] * 8)
    assert (run(library, "scaled", x, 0.01, mode="plain")[:1] > 0).all()
    result = run(library, "scaled", x, 0.01)
    np.testing.assert_array_equal(result[:4], x[:4] * np.float32([0, 0.01, 0, 0.01]))
    assert run(library, "scaled", x, 2.0**20)[2] == 0, (
        "expected denormal inputs to be flushed to zero, like results"
    )


def test_threadgroup_size_limit_may_be_lower(library):
    allowed = [library.threads_allowed("exponential", seed) for seed in SEEDS]
    assert all(384 <= threads <= 1024 and threads % 32 == 0 for threads in allowed)
    assert len(set(allowed)) > 3
    seed = int(np.argmin(allowed))
    x = random_floats(1024)
    run(library, "exponential", x, count=1024, threads=1024, mode="plain")
    run(library, "exponential", x, count=1024, threads=allowed[seed], seed=seed)
    words = f"1024 threads; with seed {seed} this kernel may have at most {allowed[seed]}"
    with pytest.raises(MetalFault, match=words):
        run(library, "exponential", x, count=1024, threads=1024, seed=seed)


def test_every_multiply_add_type_may_be_fused():
    ir = """\
  %7 = tail call float @llvm.fmuladd.f32(float %5, float %6, float %4), !dbg !12
  %8 = call <2 x half> @llvm.fmuladd.v2f16(<2 x half> %1, <2 x half> <half 1.0, half 2.0>, <2 x half> %2)
  %9 = fadd float %7, 1.0
"""
    text = choose_contraction(ir)
    assert "llvm.fmuladd" not in text
    assert "%7 = select i1 %fused.0.chosen, float %fused.0.once, float %fused.0.sum, !dbg" in text
    product = "%fused.1.product = fmul <2 x half> %1, <half 1.0, half 2.0>\n"
    assert product in text
    assert "call zeroext i1 @msl_contracts(i32 1)" in text
    assert "declare <2 x half> @llvm.fma.v2f16(<2 x half>, <2 x half>, <2 x half>)" in text
    assert "%9 = fadd float %7, 1.0" in text
