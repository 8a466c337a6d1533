"""Metal kernels of rms_norm and add_rms_norm, compared with the CPU."""

import mlx.core as mx
import pytest

from tests.support import DTYPES, assert_same_bits, random
from tiny_llm import kernels

from .support import DTYPE_NAMES, ORDERS, assert_equals_cpu, gpu_results

EPS = 1e-6


def weights(D: int, dtype: mx.Dtype) -> list[mx.array]:
    """Weights in each dtype that x may have beside it: its own, and float32."""
    return [random(D, dtype=own) for own in {dtype, mx.float32}]


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("D", [1, 33, 128, 1023, 2560, 9001])
def test_rms_norm(dtype, D):
    x = random(3, D, dtype=dtype, scale=3)
    for weight in weights(D, dtype):
        assert_equals_cpu(
            "plain",
            lambda s, weight=weight: (kernels.rms_norm(x, weight, EPS, stream=s),),
            ulps=4,
            order=("random", 1),
        )


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_NAMES.get)
@pytest.mark.parametrize("D", [7, 1024, 8200])
def test_add_rms_norm(dtype, D):
    x, y = random(2, D, dtype=dtype), random(2, D, dtype=dtype)
    for weight in weights(D, dtype):

        def call(stream, weight=weight):
            return kernels.add_rms_norm(x, y, weight, EPS, stream=stream)

        assert_equals_cpu("plain", call, ulps=4, order=("random", 2))
        assert_same_bits(gpu_results(call)[0], call(mx.cpu)[0], "sum")


def test_strided_rows_with_few_threads():
    x, weight = random(4, 300)[:, :200], random(200)
    for max_threads in (1024, 32, 33, 64):
        assert_equals_cpu(
            "plain",
            lambda s: (kernels.rms_norm(x, weight, EPS, stream=s),),
            ulps=4,
            max_threads=max_threads,
        )


def test_bitwise_equal_for_any_lane_order():
    x, weight = random(2, 1500, dtype=mx.bfloat16), random(1500, dtype=mx.bfloat16)
    first, *others = (
        gpu_results(lambda s: (kernels.rms_norm(x, weight, EPS, stream=s),), order=order)[0]
        for order in ORDERS
    )
    for other in others:
        assert_same_bits(other, first, "rms_norm in another order")


@pytest.mark.parametrize("mode", ["asan", "race"])
@pytest.mark.parametrize("D", [100, 8300])
def test_no_memory_fault_or_race(mode, D):
    x, y, weight = random(2, D), random(2, D), random(D)
    assert_equals_cpu(mode, lambda s: (kernels.rms_norm(x, weight, EPS, stream=s),), ulps=4)
    assert_equals_cpu(mode, lambda s: kernels.add_rms_norm(x, y, weight, EPS, stream=s), ulps=4)
