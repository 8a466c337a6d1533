"""Seeded kernel faults: the emulator reports the fault and its line.

All variants are kernels `<kernel>_<fault>` of one generated file, compiled once per mode.
"""

# ruff: noqa: E501 (one fault per table row)

import re
from dataclasses import dataclass

import numpy as np
import pytest

from tools.metal_emulator import Library, MetalFault

from .support import KERNELS, ORDERS, assert_close, needs_clang, random_array
from .test_mlx_kernels import attention

pytestmark = needs_clang

SOUND = (KERNELS / "sound.metal").read_text()
PARTS = SOUND.split("\n\n")  # an empty line separates kernels
KERNEL_TEXT = {name[1]: part for part in PARTS if (name := re.search(r"kernel void (\w+)", part))}
PREAMBLE = "\n".join(part for part in PARTS if part not in KERNEL_TEXT.values()) + "\n"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


@dataclass(frozen=True)
class Fault:
    """Replaces `old` with `new` in line `at`; expects a `kind` report at `lines`."""

    kernel: str
    name: str
    at: str
    old: str
    new: str
    mode: str
    kind: str
    lines: tuple[str, ...]
    says: str = ""

    @property
    def variant(self) -> str:
        return f"{self.kernel}_{self.name}"

    def text(self) -> str:
        """Kernel source with the fault and an unchanged line count."""
        result = []
        for line in KERNEL_TEXT[self.kernel].splitlines():
            if line.endswith(f"// {self.at}"):
                assert self.old in line
                line = line.replace(self.old, self.new)
            result.append(line)
        return "\n".join(result).replace(f"void {self.kernel}(", f"void {self.variant}(") + "\n"


DELETED_BARRIERS = [
    Fault("row_sum", "without_barrier", "BARRIER", BARRIER, "", "race",
          "race|uninitialised-threadgroup-read", ("READ PARTIAL",)),
    Fault("tiled_matmul", "without_first_barrier", "TILES WRITTEN", BARRIER, "", "race",
          "race|uninitialised-threadgroup-read", ("READ TILES", "WRITE A", "WRITE B")),
    Fault("tiled_matmul", "without_second_barrier", "TILES READ", BARRIER, "", "race", "race",
          ("READ TILES", "WRITE A", "WRITE B")),
    Fault("small_attention", "without_first_barrier", "LOADED", BARRIER, "", "race",
          "race|uninitialised-threadgroup-read", ("SCORE", "USE V", "WRITE K", "WRITE V")),
    Fault("small_attention", "without_second_barrier", "USED", BARRIER, "", "race", "race",
          ("SCORE", "USE V", "WRITE K", "WRITE V")),
    Fault("reverse_on_device", "without_barrier", "FENCE", "threadgroup_barrier(mem_flags::mem_device);",
          "", "race", "race", ("READ SCRATCH", "WRITE SCRATCH")),
    Fault("rotate_in_simdgroup", "without_barrier", "SIMD BARRIER",
          "simdgroup_barrier(mem_flags::mem_threadgroup);", "", "race",
          "race|uninitialised-threadgroup-read", ("READ SHARED", "WRITE SHARED")),
]  # fmt: skip
WEAK_BARRIERS = [
    Fault("row_sum", "with_execution_barrier", "BARRIER", "mem_threadgroup", "mem_none", "race",
          "missing-fence", ("READ PARTIAL",), "does not name this memory"),
    Fault("reverse_on_device", "with_wrong_fence", "FENCE", "mem_device", "mem_threadgroup", "race",
          "missing-fence", ("READ SCRATCH",)),
    Fault("rotate_in_simdgroup", "with_execution_barrier", "SIMD BARRIER", "mem_threadgroup",
          "mem_none", "race", "missing-fence", ("READ SHARED",)),
]  # fmt: skip
DIVERGENCE = [
    Fault("row_sum", "barrier_in_branch", "BARRIER", BARRIER, f"if (simdgroup == 0) {BARRIER}",
          "plain", "divergent-barrier", ("BARRIER",), "32 of 128 wait here"),
    Fault("row_sum", "return_before_barrier", "BARRIER", BARRIER, f"if (lane > 3) return; {BARRIER}",
          "plain", "divergent-barrier", ("BARRIER",), "112 have returned"),
    Fault("tiled_matmul", "return_outside", "WRITE A", "tile_a[at.y]",
          "if (row >= n || column >= n) return; tile_a[at.y]", "plain", "divergent-barrier",
          ("TILES WRITTEN",), "have returned"),
    Fault("row_sum", "simd_sum_in_branch", "SECOND SUM", "sum = simd_sum(mine);",
          "if (lane < num_simdgroups) { sum = simd_sum(mine); } sum = simd_max(sum);", "plain",
          "divergent-simd", ("SECOND SUM",), "lanes 4–31 wait in simd_max"),
    Fault("rotate_in_simdgroup", "simd_barrier_in_branch", "SIMD BARRIER", "simdgroup_barrier",
          "if (lane > 7) simdgroup_barrier", "plain", "divergent-simd", ("SIMD BARRIER",),
          "lanes 0–7 have returned"),
    Fault("row_sum", "shuffle_from_nobody", "SECOND SUM", "sum = simd_sum(mine);",
          "if (lane < 4) { sum = simd_shuffle_down(mine, 4); } else { return; }", "plain",
          "inactive-lane", ("SECOND SUM",), "simd_shuffle_down"),
]  # fmt: skip
BOUNDS = [
    Fault("row_sum", "reads_one_row_too_many", "READ X", "x[row * n + i]", "x[(row + 1) * n + i]",
          "plain", "out-of-bounds", ("READ X",), "buffer(0)"),
    Fault("row_sum", "reads_one_too_many", "READ X", "x[row * n + i]", "x[row * n + i + 1]",
          "race", "out-of-bounds", ("READ X",), "offset 6216 of buffer(0), which has 6216"),
    Fault("row_sum", "reads_before", "READ X", "x[row * n + i]", "x[(int)(row * n + i) - 1]", "asan",
          "out-of-bounds", ("READ X",), "offset -4 of buffer(0)"),
    Fault("row_sum", "writes_one_too_many", "WRITE OUT", "out[row]", "out[row + 1]", "asan",
          "out-of-bounds", ("WRITE OUT",), "wrote 4 bytes"),
    Fault("tiled_matmul", "without_bound", "WRITE C", "c[row * n + column]", "c[row * n + column + 1]",
          "race", "out-of-bounds", ("WRITE C",), "buffer(2)"),
    Fault("row_sum", "index_beyond_array", "WRITE PARTIAL", "partial[simdgroup]",
          "partial[simdgroup + 29]", "plain", "out-of-bounds", ("WRITE PARTIAL",), "fixed-size array"),
    Fault("rotate_in_simdgroup", "beyond_threadgroup_memory", "WRITE SHARED", "shared[at]",
          "shared[at + 1]", "asan", "out-of-bounds", ("WRITE SHARED",), "[[threadgroup(0)]]"),
    Fault("rotate_in_simdgroup", "beyond_threadgroup_memory_seen_by_race_mode", "WRITE SHARED",
          "shared[at]", "shared[at + 64]", "race", "out-of-bounds", ("WRITE SHARED",)),
]  # fmt: skip
MEMORY = [
    Fault("row_sum", "reads_unwritten", "READ PARTIAL", "lane < num_simdgroups", "lane < 8", "race",
          "uninitialised-threadgroup-read", ("READ PARTIAL",), "'partial'"),
    Fault("row_sum", "uses_too_much", "PARTIAL", "partial[32]", "partial[8193]", "plain",
          "threadgroup-memory-limit", ("PARTIAL",), "32784 bytes"),
    Fault("histogram", "without_atomics", "ADD",
          "atomic_fetch_add_explicit(&bins[x[i]], 1u, memory_order_relaxed);",
          "((device uint*)bins)[x[i]] += 1;", "race", "race", ("ADD",)),
    Fault("tiled_matmul", "one_output_for_all", "WRITE C", "c[row * n + column]", "c[0]", "race",
          "race", ("WRITE C",), "buffer(2)"),
    Fault("row_sum", "two_groups_one_output", "WRITE OUT", "out[row]", "out[row / 2]", "race", "race",
          ("WRITE OUT",), "a thread of another threadgroup wrote"),
    Fault("row_sum", "divides_by_zero", "READ X", "x[row * n + i]", "x[row * n + i % (n - n)]",
          "plain", "division-by-zero", ("READ X",)),
]  # fmt: skip
FAULTS = DELETED_BARRIERS + WEAK_BARRIERS + DIVERGENCE + BOUNDS + MEMORY


@pytest.fixture(scope="module")
def variants(tmp_path_factory):
    """All variants in a file: (path, lines, first line of each variant, library)."""
    text, starts = PREAMBLE, {}
    for fault in FAULTS:
        starts[fault.variant] = text.count("\n")
        text += fault.text()
    path = tmp_path_factory.mktemp("variants") / "variants.metal"
    path.write_text(text)
    return path, text.splitlines(), starts, Library(path)


class KernelLaunches:
    """A method per kernel returns (arguments, grid sizes, output, expected)."""

    @staticmethod
    def row_sum():
        x, out = random_array((6, 259)), np.zeros(6, np.float32)
        return [x, out, 259], {"grid": (6, 1, 1), "threads": (128, 1, 1)}, out, x.sum(1)

    @staticmethod
    def tiled_matmul():
        n = 19
        a, b, c = random_array((n, n)), random_array((n, n), seed=1), np.zeros((n, n), np.float32)
        return [a, b, c, n], {"grid": (3, 3, 1), "threads": (8, 8, 1)}, c, a @ b

    @staticmethod
    def small_attention():
        q, k, v = (random_array((n, 32), seed=seed) for seed, n in enumerate((5, 19, 19)))
        out = np.zeros_like(q)
        expected = attention(q[None] * np.float32(np.sqrt(32)), k[None], v[None], False)[0]
        return [q, k, v, out, 5, 19], {"grid": (2, 1, 1), "threads": (128, 1, 1)}, out, expected

    @staticmethod
    def reverse_on_device():
        x, scratch, y = np.arange(128, dtype=np.int32), *np.zeros((2, 128), np.int32)
        expected = x.reshape(2, 64)[:, ::-1].reshape(-1)
        return [x, scratch, y], {"grid": (2, 1, 1), "threads": (64, 1, 1)}, y, expected

    @staticmethod
    def rotate_in_simdgroup():
        x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
        sizes = {"grid": (2, 1, 1), "threads": (64, 1, 1), "threadgroup_memory": {0: 256}}
        return [x, y], sizes, y, np.roll(x.reshape(-1, 32), -1, axis=1).reshape(-1)

    @staticmethod
    def histogram():
        x = np.random.default_rng(0).integers(0, 5, 300, dtype=np.uint32)
        bins = np.zeros(5, np.uint32)
        return [x, bins], {"grid_threads": (300, 1, 1), "threads": (64, 1, 1)}, bins, np.bincount(x)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f"{f.variant}-{f.mode}-{f.kind}")
def test_seeded_fault_is_reported(variants, fault):
    path, lines, starts, library = variants

    def reported(order):
        arguments, sizes, _, _ = getattr(KernelLaunches, fault.kernel)()
        with pytest.raises(MetalFault) as caught:
            library.launch(fault.variant, arguments, **sizes, mode=fault.mode, order=order)
        return caught.value

    error = reported("forward")
    assert error.kind in fault.kind.split("|"), str(error)
    assert (error.file, error.kernel) == (str(path), fault.variant)
    assert error.line > starts[fault.variant]
    line = lines[error.line - 1]
    assert line.split("// ")[-1] in fault.lines, f"{error}\n{line}"
    assert fault.says in str(error)
    if fault in DELETED_BARRIERS:  # whatever the order of the threads
        assert all(reported(order) for order in ORDERS[1:])


@pytest.fixture(scope="module")
def sound():
    return Library(KERNELS / "sound.metal")


@pytest.mark.parametrize("kernel", KERNEL_TEXT)
@pytest.mark.parametrize("mode", ["plain", "asan", "race"])
@pytest.mark.parametrize("order", ORDERS)
def test_valid_kernel_has_no_findings(sound, kernel, mode, order):
    arguments, sizes, result, expected = getattr(KernelLaunches, kernel)()
    sound.launch(kernel, arguments, **sizes, mode=mode, order=order, seed=7)
    assert_close(result, expected, 1e-5)
