"""Shared helpers of the emulator tests."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from tests.metal.support import NO_CLANG
from tools.metal_emulator import MetalError, compiler, has_clang

KERNELS = Path(__file__).parent / "kernels"
bfloat16 = ml_dtypes.bfloat16

needs_clang = pytest.mark.skipif(not has_clang(), reason=NO_CLANG)
ORDERS = ("forward", "reverse", "random")


def random_array(shape, dtype=np.float32, seed=0, scale=1.0):
    """Normally distributed array, deterministic for given arguments."""
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return (values * scale).astype(dtype)


def assert_close(result, expected, relative):
    """Asserts a largest difference of at most `relative` times the largest value."""
    result, expected = np.asarray(result, np.float32), np.asarray(expected, np.float32)
    assert np.isfinite(result).all()
    assert np.abs(result - expected).max() <= relative * np.abs(expected).max()


def findings(path):
    """Errors that the type check reports for a file."""
    try:
        compiler.check(compiler.prepare(path, (), {}, {}))
    except MetalError as error:
        return error.diagnostics
    return []
