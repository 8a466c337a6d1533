"""Quantized matmul test problems: exact results and error bounds per kernel."""

import mlx.core as mx
import numpy as np

from tests.support import EPSILON, as_numpy, assert_close, describe_mismatches, random
from tiny_llm import quantized_matmul

HALVES = [mx.bfloat16, mx.float16]


def problem(M, I, O, bits, group_size, dtype, scale_dtype=None):
    """Arguments of `quantized_matmul`; bits may be "e2m1"."""
    if bits == "e2m1":
        return problem_in_floating_point(M, I, O, group_size, dtype)
    a = random(M, I, dtype=dtype)
    weights = random(O, I, dtype=scale_dtype or dtype)
    b, scales, biases = mx.quantize(weights, group_size=group_size, bits=bits)
    return scales, biases, group_size, bits, a, b


def problem_in_floating_point(M, I, O, group_size, dtype):
    """4-bit weights without biases, as in mxfp4, but with arbitrary scales."""
    words = mx.random.randint(0, 2**31 - 1, (O, I // 8)).astype(mx.uint32) * 2 + 1
    scales = random(O, I // group_size, dtype=dtype)
    return scales, None, group_size, 4, random(M, I, dtype=dtype), words


def dequantize(scales, biases, group_size, bits, b) -> np.ndarray:
    """Dequantized weights O×I in float64."""
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
        return as_numpy(mx.dequantize(b, scales, biases, group_size, bits)).astype(np.float64)
    codes = np.array(b)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
    numbers = np.concatenate([magnitudes, -magnitudes])[codes].reshape(len(b), -1, group_size)
    return (numbers * as_numpy(scales).astype(np.float64)[..., None]).reshape(len(b), -1)


def exact(scales, biases, group_size, bits, a, b) -> tuple[np.ndarray, np.ndarray]:
    """Matmul in float64, and Σ |w·a|, which bounds errors in any order of sums."""
    w, a = dequantize(scales, biases, group_size, bits, b), as_numpy(a).astype(np.float64)
    return a @ w.T, np.abs(a) @ np.abs(w).T


def fixed_point_isas(bits, dtype) -> list[str]:
    """x86 instruction sets whose kernels quantize activations; their results have the same bits."""
    exact = ["avx512"] if bits == 4 and dtype == mx.bfloat16 else []
    return [name for name in ("avx2", "avx512vnni", "avx512", "amx") if name not in exact]


def fixed_point_error(instruction_set, scales, biases, group_size, bits, a, b) -> np.ndarray | int:
    """Error of kernels that quantize activations per group.

    The quantization step is the smallest power of two for which the group's largest magnitude is
    below 255/128 · 2^14 steps; half a step is at most 2^-15 · 128/127.5 of that magnitude.
    """
    if instruction_set not in (*fixed_point_isas(bits, a.dtype), "neon"):
        return 0
    groups = as_numpy(mx.abs(a)).reshape(*a.shape[:-1], -1, group_size).astype(np.float64)
    rounded = 2.0**-15 * 128 / 127.5 * groups.max(-1)
    w = dequantize(scales, biases, group_size, bits, b)
    return rounded @ np.abs(w).reshape(len(w), -1, group_size).sum(-1).T


def evaluated(*args) -> mx.array:
    result = quantized_matmul(*args)
    mx.eval(result)
    return result


def assert_rows_are_batch_invariant(scales, biases, group_size, bits, a, b) -> None:
    together = evaluated(scales, biases, group_size, bits, a, b)
    alone = [evaluated(scales, biases, group_size, bits, row[None], b) for row in a]
    assert_close(together, mx.concatenate(alone), "rows multiplied separately", ulps=0)


def assert_exact_but_for_rounding(instruction_set, args, given=None):
    """Asserts that a matmul is exact up to rounding.

    Args:
        args: arguments of `quantized_matmul`, with row-major weights.
        given: arguments with prepacked weights; default: `args`.
    """
    half, I = args[4].dtype, args[4].shape[-1]
    bits = args[3]
    actual = as_numpy(evaluated(*(given or args))).astype(np.float64)
    expected, magnitude = exact(*args)
    # The error of one rounding to the output dtype and of two float32 sums of I terms, Σ q·a and
    # Σ a. As w = q·scale + bias may cancel, these terms may be larger than those of Σ w·a.
    largest_bias = mx.abs(args[1] if args[1] is not None else 6 * args[0])
    steps = 2.0**bits * as_numpy(mx.abs(args[0])).max() + as_numpy(largest_bias).max()
    sums = 2.0**-24 * np.sqrt(I) * steps * np.abs(as_numpy(args[4])).sum(1, keepdims=True)
    bound = EPSILON[half] / 2 * np.abs(expected) + sums + 1e-7 * magnitude
    bound += fixed_point_error(instruction_set, *args)
    bound += 2.0**-25 if half == mx.float16 else 0  # half of the smallest subnormal
    times = np.abs(actual - expected) / bound
    times = np.where(np.isnan(times), np.inf, times)
    row, output = np.unravel_index(times.argmax(), times.shape)
    assert times.max() <= 1.01, (
        f"row {row}, output {output}: expected {expected[row, output]:.6g}, got "
        f"{actual[row, output]:.6g}, {times.max():.2f} × the error bound of float32 sums, fixed "
        f"point and one rounding; {describe_mismatches(times > 1.01)}"
    )
