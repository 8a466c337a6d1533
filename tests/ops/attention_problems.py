"""Attention test problems: masks, exact results and error bounds."""

import mlx.core as mx
import numpy as np

from tests.support import EPSILON, as_numpy, random
from tiny_llm import causal_mask, flash_attention, kernels

MASKS = ["none", "causal", "additive", "boolean", "masked rows"]


def problem(B, H, group, L, S, D, dtype=mx.float32):
    return (
        random(B, H * group, L, D, dtype=dtype),
        random(B, H, S, D, dtype=dtype),
        random(B, H, S, D, dtype=dtype),
    )


def make_mask(kind: str, B: int, H_q: int, L: int, S: int, dtype: mx.Dtype = mx.float32):
    """Mask of a kind; kinds differ in the dimensions that are broadcast; `dtype` of "additive"."""
    if kind == "none":
        return None
    if kind == "causal":
        return "causal"
    if kind == "additive":
        mask = random(B, 1, L, S, dtype=dtype)
        hidden = mx.random.uniform(shape=mask.shape) < 0.2
        return mx.where(hidden, mx.array(-mx.inf, dtype), mask)
    if kind == "boolean":
        return mx.random.uniform(shape=(H_q, 1, S)) < 0.6
    mask = mx.zeros((L, S))  # every third query sees no key; the others all but one range
    mask[::3] = -mx.inf
    mask[:, S // 4 : S // 2 + 1] = -mx.inf
    return mask


def as_additive(mask, L: int, S: int) -> np.ndarray:
    if mask is None:
        return np.zeros((L, S))
    if isinstance(mask, str):
        return as_numpy(causal_mask(L, S, mx.float32)).astype(np.float64)
    if mask.dtype == mx.bool_:
        return np.where(np.array(mask), 0, -np.inf)
    return as_numpy(mask).astype(np.float64)


def exact(query, key, value, scale, mask) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attention in float64, zero for masked rows; a float32 error bound; the sums' magnitudes.

    A score is a sum over the head size, D, with an error of at most D·2⁻²⁴·Σ|q·k|, which becomes
    the relative error of its softmax weight. Sums over the S keys are sequential.
    """
    q, k, v = (as_numpy(x).astype(np.float64) for x in (query, key, value))
    (L, D), S, group = q.shape[-2:], k.shape[-2], q.shape[-3] // k.shape[-3]
    k, v = np.repeat(k, group, axis=-3), np.repeat(v, group, axis=-3)
    added = as_additive(mask, L, S)
    scores = q @ k.swapaxes(-2, -1) * scale + added
    largest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isfinite(largest), largest, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights = weights / np.where(total == 0, 1, total)
    magnitudes = np.abs(q) @ np.abs(k).swapaxes(-2, -1) * abs(scale)
    magnitudes = magnitudes + np.where(np.isfinite(added), np.abs(added), 0)
    magnitudes = np.where(weights > 0, magnitudes, 0)  # masked keys contribute no error
    worst = magnitudes.max(axis=-1, keepdims=True, initial=0)
    relative = 2.0**-24 * (2 * (D + 4) * worst + 2 * S + 32)
    magnitude = weights @ np.abs(v)
    return weights @ v, relative * magnitude, magnitude


def evaluated(*args, **kwargs) -> mx.array:
    result = flash_attention(*args, **kwargs)
    mx.eval(result)
    return result


def assert_exact(
    actual: mx.array, expected: np.ndarray, error: np.ndarray, magnitude: np.ndarray
) -> None:
    """Compares with the result of `exact`, up to its error bound and rounding to actual's dtype.

    In bfloat16, AMX kernels represent a weight as the sum of two bfloat16 numbers, with a relative
    error of 2⁻¹⁵.
    """
    assert actual.shape == expected.shape
    if actual.dtype == mx.bfloat16 and kernels.extension().instruction_set() == "amx":
        error = error + 2.0**-15 * magnitude
    # Subnormal results have an absolute error instead of a relative one.
    smallest = 2.0**-24 if actual.dtype == mx.float16 else 2.0**-126
    bound = EPSILON[actual.dtype] / 2 * (np.abs(expected) + error) + error + smallest
    values = as_numpy(actual)
    ratios = np.abs(values - expected) / bound
    ratios = np.where(np.isnan(ratios), np.inf, ratios)
    if ratios.size == 0 or ratios.max() <= 1:
        return
    worst = np.unravel_index(ratios.argmax(), ratios.shape)
    where = ", ".join(map(str, worst))
    raise AssertionError(
        f"{(ratios > 1).sum()} of {ratios.size} elements are wrong; the worst, at [{where}] of "
        f"{'×'.join(map(str, ratios.shape))} (…, head, query, d): expected {expected[worst]:.6g}, "
        f"got {values[worst]:.6g}; the error is {ratios[worst]:.1f} × its bound"
    )
