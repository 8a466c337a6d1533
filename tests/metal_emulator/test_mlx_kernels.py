"""MLX's kernels, the benchmarks' baselines, run in the emulator."""

from pathlib import Path

import mlx
import numpy as np
import pytest

from tools.metal_emulator import Library

from .support import KERNELS, assert_close, bfloat16, needs_clang, random_array

pytestmark = needs_clang

MLX_HEADERS = Path(next(iter(mlx.__path__))) / "include"
BF16 = 0.02  # tolerance of bfloat16 matmuls, relative to the largest value


def library(name, constants=None):
    return Library(KERNELS / name, [MLX_HEADERS], function_constants=constants or {})


def quantized(O, I, group_size=64):
    """Random 4-bit O×I weights: packed, scales, biases, dequantized."""
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 16, (O, I), dtype=np.uint32)
    shifts = np.arange(8, dtype=np.uint32) * 4
    packed = (codes.reshape(O, I // 8, 8) << shifts).sum(-1, dtype=np.uint32)
    scales = random_array((O, I // group_size), bfloat16, 2, 0.02)
    biases = random_array((O, I // group_size), bfloat16, 3, 0.1)
    wide = [np.repeat(a.astype(np.float32), group_size, axis=1) for a in (scales, biases)]
    return packed, scales, biases, codes * wide[0] + wide[1]


@pytest.mark.parametrize("mode", ["plain", "race"])
def test_quantized_matmul(mode):
    M, O, I = 37, 45, 128
    packed, scales, biases, weights = quantized(O, I)
    x, y = random_array((M, I), bfloat16), np.zeros((M, O), bfloat16)
    arguments = {0: packed, 1: scales, 2: biases, 3: x, 4: y, 5: I, 6: O, 7: M, 8: 0, 11: 0}
    arguments |= dict.fromkeys((9, 12), np.zeros(1, np.int32))
    arguments |= dict.fromkeys((10, 13, 14, 15), np.zeros(1, np.int64))
    library("mlx_quantized.metal").launch(
        "qmm_t", arguments, grid=(-(-O // 32), -(-M // 32), 1), threads=(32, 2, 2), mode=mode
    )
    assert_close(y, x.astype(np.float32) @ weights.T, BF16)


def attention(q, k, v, causal):
    """Reference attention: q is H_q×L×D, k and v are H×S×D."""
    q, k, v = (a.astype(np.float32) for a in (q, k, v))
    k, v = (np.repeat(a, len(q) // len(a), axis=0) for a in (k, v))
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
    if causal:
        L, S = scores.shape[1:]
        scores = np.where(np.arange(S) <= np.arange(L)[:, None] + S - L, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


# Constants: has_mask, query_transposed, do_causal, bool_mask, float_mask, has_sinks, blocks
SDPA = {20: False, 21: False, 22: False, 23: False, 24: False, 25: False, 26: 32}


@pytest.mark.parametrize("mode", ["plain", "race", "count"])
def test_attention_for_decoding(mode):
    H_q, H, S, D = 4, 2, 37, 64
    q, k, v = (
        random_array((h, n, D), bfloat16, i) for i, (h, n) in enumerate([(H_q, 1), (H, S), (H, S)])
    )
    out = np.zeros_like(q)
    strides = [np.uint64(n) for n in (S * D, D, S * D, D)]
    arguments = dict(enumerate([q, k, v, out, H_q // H, S, *strides, D**-0.5]))
    launch = library("mlx_sdpa_vector.metal", SDPA).launch(
        "sdpa_vector", arguments, grid=(H_q, 1, 1), threads=(1024, 1, 1), mode=mode
    )
    assert_close(out, attention(q, k, v, False), BF16)
    if mode == "count":
        assert (
            launch.counts.device_bytes_read_by_buffer[1] == H_q * S * D * 2
        )  # each query head reads all keys of its KV head
        assert launch.counts.unique_device_bytes_read_by_buffer[1] == k.nbytes
