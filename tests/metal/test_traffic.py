"""Metal kernels' traffic and operations stay within limits relative to MLX."""

import functools

import pytest

from benchmark.metal_attention import attention_jobs
from benchmark.metal_jobs import Job, run
from benchmark.metal_matmuls import matmul_jobs
from benchmark.metal_paged import paged_jobs
from benchmark.metal_traffic import compare, exceeded
from tests.metal.support import NO_CLANG
from tools.metal_emulator import has_clang

pytestmark = [
    pytest.mark.slow,  # the emulator runs full-size shapes
    pytest.mark.skipif(not has_clang(), reason=NO_CLANG),
]


@functools.cache
def jobs() -> dict[str, Job]:
    """The jobs by name and shape, with attention's names for MLX's kernels."""
    found = {f"{job.name}, {job.shape}": job for job in [*matmul_jobs(), *paged_jobs()]}
    return found | {f"{job.name}, {job.shape}, {job.mlx_kernel}": job for job in attention_jobs()}


# Each count may be at most this multiple of MLX's. The margin of device bytes is only 0.1 %.
MLX_LIMITS = {"device_bytes": 1.001, "threadgroup_bytes": 1.05, "instructions": 1.05}

FOUR_ROWS = "quantized_matmul decode 0.6b, 4×3072×1024, 4 bits, groups of 128"
PREFILL = "quantized_matmul prefill 0.6b, 512×3072×1024, 4 bits, groups of 128"
DECODING = "flash_attention decode 4b and 8b, H_q 32, H 8, L 1, S 512, sdpa_vector"
# Decoding of 1, 4, 8 and 16 sequences, and prefill, with quantized and dense weights. Emulating a
# full-size shape takes only seconds, because a matmul's job computes just 64 outputs.
SELECTED = [
    "quantized_matmul decode 0.6b, 1×3072×1024, 4 bits, groups of 128",
    "quantized_matmul decode 4b, 1×4096×2560, 4 bits, groups of 128",
    "quantized_matmul decode 0.6b, 1×3072×1024, 8 bits, groups of 64",
    FOUR_ROWS,
    "quantized_matmul decode 8b, 8×12288×4096, 4 bits, groups of 128",
    "quantized_matmul decode 0.6b, 16×3072×1024, 4 bits, groups of 128",
    PREFILL,
    "quantized_matmul prefill 4b, 512×9728×2560, 4 bits, groups of 128",
    "matmul decode 0.6b, 1×3072×1024, dense",
    "matmul prefill 0.6b, 512×3072×1024, dense",
    "flash_attention decode 0.6b, H_q 16, H 8, L 1, S 512, sdpa_vector",
    DECODING,
    "flash_attention decode 0.6b, H_q 16, H 8, L 1, S 4096, sdpa_vector_2pass_1_gqa2",
    "flash_attention prefill 0.6b, H_q 16, H 8, L 128, S 512, attention_32_16_128",
    "paged_attention decode 0.6b, H_q 16, H 8, L 1, S 4096, pages of 128",
    "paged_attention decode 4b and 8b, H_q 32, H 8, L 1, S 4096, pages of 16",
    "paged_attention prefill 0.6b, H_q 16, H 8, L 128, S 512, pages of 16",
]


@pytest.mark.parametrize("name", SELECTED)
def test_counts_stay_within_the_limits(name):
    """Paging adds only block table reads to the traffic of the dense kernel, its peer."""
    row = compare(jobs()[name])
    assert exceeded(row) == []
    if name.startswith("paged"):
        assert row["limits"]["device_bytes"] == row["limits"]["threadgroup_bytes"] == 1.05
        assert row["ratios"]["device_bytes"] >= 1
    else:
        assert row["limits"] == MLX_LIMITS
    if name.startswith("paged") or name == PREFILL:
        assert row["ours"]["matrix_multiply_adds"] == row["mlx"]["matrix_multiply_adds"]


def test_number_of_multiplications():
    assert run(jobs()[PREFILL].ours()).matrix_multiply_adds == 64 * 64 * 1024


def bytes_read(name: str) -> tuple[list[int], dict[int, int]]:
    """Size of each argument of a job's kernel, and the bytes that it reads of it."""
    step, *_ = jobs()[name].ours()
    sizes = {"grid": step.groups, "threads": step.threads}
    launch = step.library.launch(step.kernel, step.arguments, **sizes, mode="count")
    sizes = [getattr(argument, "nbytes", 0) for argument in step.arguments]
    return sizes, launch.counts.device_bytes_read_by_buffer


def test_causal_attention_reads_each_key_once_and_no_mask():
    sizes, read = bytes_read(DECODING)
    assert (read[1], read[2]) == (sizes[1], sizes[2])
    assert read.get(3, 0) == read.get(4, 0) == 0


def test_matvec_reads_each_weight_once_for_four_rows():
    """Four rows share each read of b; rows of a are read once per four outputs."""
    sizes, read = bytes_read(FOUR_ROWS)
    assert (read[3], read[2]) == (sizes[3], sizes[2] * 64 // 4)
