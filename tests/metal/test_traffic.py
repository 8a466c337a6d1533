"""Metal kernels' traffic and operations stay within limits relative to MLX."""

import pytest

from benchmark.metal_attention import attention_jobs
from benchmark.metal_jobs import Job, run
from benchmark.metal_matmuls import matmul_jobs
from benchmark.metal_paged import paged_jobs
from benchmark.metal_traffic import compare, exceeded
from tests.metal.support import NO_CLANG
from tools.metal_emulator import has_clang

pytestmark = pytest.mark.skipif(not has_clang(), reason=NO_CLANG)


def job_named(name: str) -> Job:
    """Creates the matmul jobs, which need the extension; returns the named one."""
    return next(job for job in matmul_jobs() if f"{job.name}, {job.shape}" == name)


# Each count may be at most this multiple of MLX's. The margin of device bytes is only 0.1 %.
MLX_LIMITS = {"device_bytes": 1.001, "threadgroup_bytes": 1.05, "instructions": 1.05}

# Decoding of 1, 4, 8 and 16 sequences, and prefill, with quantized and dense weights. Emulating a
# full-size shape takes only seconds, because a job computes just 64 outputs.
SELECTED = [
    "quantized_matmul decode 0.6b, 1×3072×1024, 4 bits, groups of 128",
    "quantized_matmul decode 4b, 1×4096×2560, 4 bits, groups of 128",
    "quantized_matmul decode 0.6b, 1×3072×1024, 8 bits, groups of 64",
    "quantized_matmul decode 0.6b, 4×3072×1024, 4 bits, groups of 128",
    "quantized_matmul decode 8b, 8×12288×4096, 4 bits, groups of 128",
    "quantized_matmul decode 0.6b, 16×3072×1024, 4 bits, groups of 128",
    "quantized_matmul prefill 0.6b, 512×3072×1024, 4 bits, groups of 128",
    "quantized_matmul prefill 4b, 512×9728×2560, 4 bits, groups of 128",
    "matmul decode 0.6b, 1×3072×1024, dense",
    "matmul prefill 0.6b, 512×3072×1024, dense",
]


ATTENTION = {
    f"{job.name}, {job.shape}, compared with {job.mlx_kernel}": job for job in attention_jobs()
}
SELECTED_ATTENTION = [
    "flash_attention decode 0.6b, H_q 16, H 8, L 1, S 512, compared with sdpa_vector",
    "flash_attention decode 4b and 8b, H_q 32, H 8, L 1, S 512, compared with sdpa_vector",
    "flash_attention decode 0.6b, H_q 16, H 8, L 1, S 4096, compared with sdpa_vector_2pass_1_gqa2",
    "flash_attention prefill 0.6b, H_q 16, H 8, L 128, S 512, compared with attention_32_16_128",
]


@pytest.mark.slow  # the emulator runs full-size shapes
@pytest.mark.parametrize("name", SELECTED_ATTENTION)
def test_attention_stays_within_the_limit(name):
    row = compare(ATTENTION[name])
    assert row["limits"] == MLX_LIMITS
    assert exceeded(row) == []


PAGED = {f"{job.name}, {job.shape}": job for job in paged_jobs()}
CHOSEN_PAGED = [
    "paged_attention decode 0.6b, H_q 16, H 8, L 1, S 4096, pages of 128",
    "paged_attention decode 4b and 8b, H_q 32, H 8, L 1, S 4096, pages of 16",
    "paged_attention prefill 0.6b, H_q 16, H 8, L 128, S 512, pages of 16",
]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN_PAGED)
def test_paging_overhead_is_small(name):
    """Paging adds only block table reads to device traffic."""
    row = compare(PAGED[name])
    assert row["limits"]["device_bytes"] == row["limits"]["threadgroup_bytes"] == 1.05
    assert row["ratios"]["device_bytes"] >= 1
    assert exceeded(row) == []
    assert row["ours"]["matrix_multiply_adds"] == row["mlx"]["matrix_multiply_adds"]


@pytest.mark.slow
def test_causal_attention_reads_each_key_once_and_no_mask():
    step, _ = ATTENTION[SELECTED_ATTENTION[1]].ours()
    counts = step.library.launch(
        step.kernel, step.arguments, grid=step.groups, threads=step.threads, mode="count"
    ).counts
    read = counts.device_bytes_read_by_buffer
    assert read[1] == step.arguments[1].nbytes
    assert read[2] == step.arguments[2].nbytes
    assert read.get(3, 0) == 0
    assert read.get(4, 0) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", SELECTED)
def test_matmuls_stay_within_the_limits(name):
    row = compare(job_named(name))
    assert row["limits"] == MLX_LIMITS
    assert exceeded(row) == []


@pytest.mark.slow  # compiles the kernel source again
def test_matvec_reads_each_weight_once_for_four_rows():
    """Four rows share each read of b; rows of a are read once per four outputs."""
    job = job_named("quantized_matmul decode 0.6b, 4×3072×1024, 4 bits, groups of 128")
    (step,) = job.ours()
    counts = step.library.launch(
        step.kernel, step.arguments, grid=step.groups, threads=step.threads, mode="count"
    ).counts
    assert counts.device_bytes_read_by_buffer[3] == step.arguments[3].nbytes
    assert counts.device_bytes_read_by_buffer[2] == step.arguments[2].nbytes * 64 // 4


@pytest.mark.slow
def test_both_kernels_have_equal_multiplication_counts():
    job = job_named("quantized_matmul prefill 0.6b, 512×3072×1024, 4 bits, groups of 128")
    assert run(job.ours()).matrix_multiply_adds == run(job.mlx()).matrix_multiply_adds
    assert run(job.ours()).matrix_multiply_adds == 64 * 64 * 1024
