"""MLX's kernels, the benchmarks' baselines, run in the emulator."""

from pathlib import Path

import mlx
import numpy as np
import pytest

from tools.metal_emulator import Library, MetalFault

from .support import KERNELS, assert_close, bfloat16, needs_clang, random_array

pytestmark = needs_clang

MLX_HEADERS = Path(next(iter(mlx.__path__))) / "include"
BF16 = 0.02  # tolerance of bfloat16 matmuls, relative to the largest value


def library(name, constants=None):
    return Library(KERNELS / name, [MLX_HEADERS], function_constants=constants or {})


def quantized(O, I, group_size=64):
    """Random 4-bit O×I weights: packed, scales, biases, dequantized."""
    codes = np.random.default_rng(1).integers(0, 16, (O, I), dtype=np.uint32)
    shifts = np.arange(8, dtype=np.uint32) * 4
    packed = (codes.reshape(O, I // 8, 8) << shifts).sum(-1, dtype=np.uint32)
    scales = random_array((O, I // group_size), bfloat16, 2, 0.02)
    biases = random_array((O, I // group_size), bfloat16, 3, 0.1)
    wide = [np.repeat(a.astype(np.float32), group_size, axis=1) for a in (scales, biases)]
    return packed, scales, biases, codes * wide[0] + wide[1]


def run_matvec(kernel, O, I, mode):
    """Runs the kernel, checks its result; returns (launch, weights, result)."""
    packed, scales, biases, weights = quantized(O, I)
    x, y = random_array((1, I), bfloat16), np.zeros((1, O), bfloat16)
    sizes = {5: I, 6: O}
    arguments = {0: packed, 1: scales, 2: biases, 3: x, 4: y, **sizes, 7: 0, 10: 0}
    arguments |= dict.fromkeys((8, 11), np.zeros(1, np.int32))
    arguments |= dict.fromkeys((9, 12, 13, 14), np.zeros(1, np.int64))
    launch = library("mlx_quantized.metal").launch(
        kernel, arguments, grid=(1, -(-O // 8), 1), threads=(32, 2, 1), mode=mode
    )
    assert_close(y, x.astype(np.float32) @ weights.T, BF16)
    return launch, packed, y


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "O", "I"), [("qmv_fast", 16, 512), ("qmv", 24, 192)])
@pytest.mark.parametrize("mode", ["plain", "race", "count"])
def test_quantized_matvec(kernel, O, I, mode):
    launch, packed, y = run_matvec(kernel, O, I, mode)
    if mode == "count" and kernel == "qmv_fast":
        counts = launch.counts
        assert counts.device_bytes_read_by_buffer[0] == packed.nbytes  # each weight is read once
        assert counts.unique_device_bytes_written == y.nbytes
        assert counts.simd_operations == O  # one simd_sum per row


@pytest.mark.slow
def test_rows_written_by_two_mlx_simdgroups():
    """Two simdgroups write equal values if 8 does not divide O: a benign race."""
    run_matvec("qmv", 13, 192, "plain")
    with pytest.raises(MetalFault, match="quantized.h.*race in qmv"):
        run_matvec("qmv", 13, 192, "race")


@pytest.mark.slow
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


GEMM = np.dtype(
    [(name, np.int32) for name in ["M", "N", "K", "lda", "ldb", "ldd", "tiles_n", "tiles_m"]]
    + [(name, np.int64) for name in ("batch_a", "batch_b", "batch_d")]
    + [(name, np.int32) for name in ("swizzle_log", "k_iterations", "batch_ndim")],
    align=True,
)
# Function constants: has_batch, use_out_source, do_axpby, align_M, align_N, align_K
GEMM_CONSTANTS = {10: False, 100: False, 110: False, 200: False, 201: False, 202: False}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "race", "count"])
def test_dense_matmul(mode):
    M, N, K = 37, 45, 50
    a, b = random_array((M, K), bfloat16), random_array((N, K), bfloat16, 1)
    d = np.zeros((M, N), bfloat16)
    tiles_n, tiles_m = -(-N // 32), -(-M // 32)
    parameters = np.array((M, N, K, K, K, N, tiles_n, tiles_m, 0, 0, 0, 0, K // 16, 1), GEMM)
    launch = library("mlx_gemm.metal", GEMM_CONSTANTS).launch(
        "gemm_nt",
        {0: a, 1: b, 3: d, 4: parameters},
        grid=(tiles_n, tiles_m, 1),
        threads=(32, 2, 2),
        mode=mode,
    )
    assert_close(d, a.astype(np.float32) @ b.astype(np.float32).T, BF16)
    if mode == "count":
        padded = 64 * 64 * 64  # M and N are padded to multiples of 32, K to a multiple of 16
        assert launch.counts.simdgroup_matrix_multiply_adds == padded


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


ATTENTION = np.dtype(
    [(name, np.int32) for name in ["B", "H", "D", "qL", "kL", "gqa_factor"]]
    + [("scale", np.float32)]
    + [
        (n, np.int32)
        for n in ["NQ", "NK", "NQ_aligned", "NK_aligned", "qL_rem", "kL_rem", "qL_off"]
    ]
    + [(name, np.int64, 3) for name in "QKVO"],
    align=True,
)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "causal"), [("plain", False), ("plain", True), ("race", True)])
def test_attention_for_prefill(mode, causal):
    H_q, H, L, S, D = 2, 1, 40, 72, 64
    q, k, v = (
        random_array((h, n, D), bfloat16, i) for i, (h, n) in enumerate([(H_q, L), (H, S), (H, S)])
    )
    out = np.zeros_like(q)
    strides = [(h * n * D, n * D, D) for h, n in [(H_q, L), (H, S), (H, S), (H_q, L)]]
    blocks = (-(-L // 32), -(-S // 32), L // 32, S // 32)
    sizes = (1, H_q, D, L, S, H_q // H, D**-0.5, *blocks, L % 32, S % 32, S - L)
    constants = {200: False, 201: False, 300: False, 301: causal, 302: False, 303: False}
    library("mlx_attention.metal", constants).launch(
        "attention",
        {0: q, 1: k, 2: v, 3: out, 4: np.array((*sizes, *strides), ATTENTION)},
        grid=(blocks[0], H_q, 1),
        threads=(32, 4, 1),
        mode=mode,
    )
    assert_close(out, attention(q, k, v, causal), BF16)


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
