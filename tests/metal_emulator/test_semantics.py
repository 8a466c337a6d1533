"""The emulator has Metal's semantics; each test covers one feature."""

import numpy as np
import pytest

from tools.metal_emulator import Library, MetalError, MetalFault

from .support import KERNELS, ORDERS, bfloat16, needs_clang, random_array

pytestmark = needs_clang


@pytest.fixture(scope="module")
def library():
    return Library(KERNELS / "semantics.metal", function_constants={3: False})


ONE_SIMDGROUP = {"grid": (1, 1, 1), "threads": (32, 1, 1)}
LANES = np.arange(32)


def shuffled(x, source, fill):
    """Reference shuffle: x[source], or `fill` if `source` is no lane (0 to 31)."""
    return np.where((source >= 0) & (source < 32), x[np.clip(source, 0, 31)], fill)


@pytest.mark.parametrize("order", ORDERS)
def test_each_simd_operation(library, order):
    x = np.random.default_rng(0).integers(1, 1000, 32, dtype=np.int32)
    out = np.zeros((24, 32), np.int32)
    library.launch("simd_operations", [x, out], **ONE_SIMDGROUP, order=order)
    sums = np.cumsum(x)
    expected = [
        x.sum(),
        (-1) ** (x % 2).sum(),
        x.max(),
        x.min(),
        np.bitwise_and.reduce(x),
        np.bitwise_or.reduce(x),
        np.bitwise_xor.reduce(x),
        sums,
        sums - x,
        x[::-1],
        x[LANES ^ 5],
        shuffled(x, LANES + 3, x),
        shuffled(x, LANES - 3, x),
        np.roll(x, -3),
        np.roll(x, 3),
        shuffled(x, LANES + 3, -1),
        shuffled(x, LANES - 3, -1),
        x[7],
        x[0],
        True,
        False,
        np.int64(sum(1 << lane for lane in range(0, 32, 3))).astype(np.int32),
        np.repeat(x.reshape(8, 4).sum(1), 4),
        LANES == 0,
    ]
    for i, row in enumerate(expected):
        np.testing.assert_array_equal(out[i], np.broadcast_to(row, 32), err_msg=f"operation {i}")


@pytest.mark.parametrize("first", [1, 5, 32])
def test_reduction_covers_active_lanes(library, first):
    out = np.zeros(32, np.int32)
    library.launch("simd_sum_of_active_lanes", [out, first], **ONE_SIMDGROUP)
    np.testing.assert_array_equal(out, np.where(first > LANES, first, 0))


def test_matrix_layout(library):
    """Lanes 0 and 1 hold columns 0 to 3 of row 0, lanes 2 and 3 those of row 1."""
    a, held = np.arange(64, dtype=np.float32), np.zeros((32, 2), np.float32)
    library.launch("matrix_layout", [a, held], **ONE_SIMDGROUP)
    quad = LANES // 4
    row, column = (quad & 4) + LANES // 2 % 4, (quad & 2) * 2 + LANES % 2 * 2
    np.testing.assert_array_equal(held[:, 0], row * 8 + column)
    np.testing.assert_array_equal(held[:, 1], row * 8 + column + 1)


def test_matrix_product(library):
    a, b = random_array((10, 12), np.float16), random_array((10, 12), np.float16, 1)
    d = np.zeros((8, 8), np.float32)
    library.launch("matrix_product", [a, b, d, 12], **ONE_SIMDGROUP)
    # The kernel loads from origin (2, 1), which is (column, row) even for a transposed matrix.
    expected = a[1:9, 2:10].astype(np.float32) @ b[1:9, 2:10].astype(np.float32).T
    np.testing.assert_allclose(d, expected + 0.5 * np.eye(8), rtol=1e-5, atol=1e-5)


def test_rounding_to_half_and_bfloat(library):
    special = [0.0, -0.0, np.inf, -np.inf, 1e-8, 65519.0, 65520.0, 1 + 2**-9, 1 + 3 * 2**-9]
    x = np.concatenate([np.array(special, np.float32), random_array(200, scale=100)])
    half, bfloat = np.zeros(x.shape, np.float16), np.zeros(x.shape, bfloat16)
    library.launch("round_to", [x, half, bfloat], grid_threads=x.shape, threads=(64,))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(half.view(np.uint16), x.astype(np.float16).view(np.uint16))
    np.testing.assert_array_equal(bfloat.view(np.uint16), x.astype(bfloat16).view(np.uint16))


@pytest.mark.parametrize(("name", "dtype"), [("half", np.float16), ("bfloat", bfloat16)])
def test_each_operation_is_rounded(library, name, dtype):
    x = random_array(100, dtype)
    y = np.zeros_like(x)
    library.launch(f"square_and_add_{name}", [x, y], grid_threads=(100,), threads=(32,))
    wide = x.astype(np.float32)
    expected = ((wide * wide).astype(dtype).astype(np.float32) + wide).astype(dtype)
    np.testing.assert_array_equal(y.astype(np.float32), expected.astype(np.float32))


def test_vectors_structs_and_packed_types(library):
    pair_type = np.dtype(
        [("factor", "f4"), ("_", "f4"), ("offsets", "i2", 4), ("shift", "f4", 3), ("end", "f4")]
    )
    pair = np.array((3.0, 0, (1, 2, 30, 4), (7, 8, 9), 0), pair_type)
    points = random_array((5, 3), scale=30)
    out, words = np.zeros((5, 4), np.float32), np.zeros(5, np.uint32)
    raw = points.view(np.uint8).reshape(-1)
    library.launch("types", [pair, raw, out, words], grid_threads=(5,), threads=(5,))
    expected = np.stack([points[:, 2] * 3, points[:, 1] * 3, points[:, 0], np.full(5, 39)], 1)
    np.testing.assert_allclose(out, np.clip(expected, -100, 100), rtol=1e-6)
    np.testing.assert_array_equal(words, np.arange(5, dtype=np.float32).view(np.uint32) | 0x3C00)


@pytest.mark.slow
@pytest.mark.parametrize("constants", [{3: False}, {3: True}, {"doubled": True, "added": 7}])
def test_function_constants(constants):
    library = Library(KERNELS / "semantics.metal", function_constants=constants)
    out, more = np.zeros(6, np.float32), np.full(6, 2, np.float32)
    doubled = constants.get(3, constants.get("doubled"))
    arguments = {0: out, 1: more} if doubled else {0: out}
    library.launch("function_constants", arguments, grid_threads=(6,), threads=(6,))
    table = np.array([1.5, 2.5, 3.5, 4.5, 1.5, 2.5], np.float32)
    np.testing.assert_array_equal(out, table * (2 if doubled else 1) + constants.get("added", 0))


@pytest.mark.parametrize("sizes", [{"grid_threads": (13, 5)}, {"grid": (2, 3)}], ids=str)
def test_thread_position_attributes(library, sizes):
    """Threadgroups at the edge of `grid_threads` may be smaller."""
    width, height = sizes.get("grid_threads", (16, 6))
    y, x = np.mgrid[:height, :width]
    group_width = np.where(x // 8 == 1, width - 8, 8)
    group_height = np.where(y // 2 == 2, height - 4, 2)
    index = y % 2 * group_width + x % 8
    expected = {
        "in_grid": y * 1000 + x,
        "in_group": y % 2 * 1000 + x % 8,
        "group": y // 2 * 1000 + x // 8,
        "group_size": group_height * 1000 + group_width,
        "groups": np.full_like(x, 3002),
        "grid": np.full_like(x, height * 1000 + width),
        "index": index,
        "simdgroup": index // 32,
        "lane": index % 32,
        "simdgroups": np.ones_like(x),
    }
    written = np.zeros((height, width), np.dtype([(name, np.uint32) for name in expected]))
    library.launch("positions", [written], **sizes, threads=(8, 2))
    for name, values in expected.items():
        np.testing.assert_array_equal(written[name], values, err_msg=name)


@pytest.mark.parametrize("mode", ["plain", "race"])
def test_atomics(library, mode):
    results, total = np.zeros(5, np.int32), np.zeros(1, np.float32)
    library.launch("atomics", [results, total], grid_threads=(100,), threads=(64,), mode=mode)
    np.testing.assert_array_equal(results, [4950, 99, -99, 255, 200])
    assert total[0] == 50


@pytest.mark.slow
def test_traffic_is_counted_exactly(library):
    x, y = random_array(1024), random_array(1024, seed=1)
    launch = library.launch(
        "counted_axpy", [x, y, 3.0], grid_threads=(256,), threads=(64,), mode="count"
    )
    counts = launch.counts
    assert counts.threads == 256
    assert counts.device_bytes_read == counts.unique_device_bytes_read == x.nbytes + y.nbytes
    assert counts.device_bytes_written == counts.unique_device_bytes_written == y.nbytes
    assert counts.constant_bytes_read == 256 * 4
    assert counts.multiply_adds == 1024
    assert counts.simd_operations == counts.barriers == counts.threadgroup_bytes_read == 0


def test_shared_reads_are_counted_per_thread(library):
    x, y = random_array(64, np.float16), np.zeros(64, np.float32)
    counts = library.launch(
        "counted_rereads",
        [x, y],
        grid=(1,),
        threads=(64,),
        threadgroup_memory={0: 256},
        mode="count",
    ).counts
    assert counts.device_bytes_read == 64 * x.nbytes
    assert counts.unique_device_bytes_read == x.nbytes
    assert counts.threadgroup_bytes_read == counts.threadgroup_bytes_written == 256
    assert counts.barriers == 1
    assert counts.multiply_adds == 64 * 64
    np.testing.assert_allclose(y, (x.astype(np.float32) ** 2).sum(), rtol=1e-5)


def test_counts_require_counting_mode(library):
    launch = library.launch("few_threads", [np.zeros(1, np.int32)], grid=(1,), threads=(1,))
    with pytest.raises(ValueError, match='mode="count"'):
        _ = launch.counts


FLOATS, INTS = np.zeros(4, np.float32), np.zeros(4, np.int32)
WRONG_ARGUMENTS = {
    "too few buffers": ("square_and_add_half", [np.zeros(4, np.float16)], "'y' is not bound"),
    "too many buffers": ("few_threads", [INTS, INTS], r"buffer\(1\) is bound, but"),
    "float for half": ("square_and_add_half", [FLOATS, FLOATS], "must be half .* float32"),
    "half for bfloat": ("square_and_add_bfloat", [np.zeros(4, np.float16)] * 2, "view.ml_dtypes"),
    "float for int": ("few_threads", [FLOATS], "must be int .* float32"),
    "wider integers": ("few_threads", [np.zeros(4, np.int64)], "must be int .* int64"),
    "a number that does not fit": ("simd_sum_of_active_lanes", [INTS, 1.5], "got the number 1.5"),
    "a struct of another size": ("positions", [np.zeros(4, [("a", "u4")])], "struct of 40 bytes"),
    "a read-only result": ("few_threads", [np.broadcast_to(np.int32(0), 4)], "writable"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_ARGUMENTS)
def test_invalid_binding_is_rejected(library, name):
    kernel, arguments, says = WRONG_ARGUMENTS[name]
    with pytest.raises(MetalFault, match=says) as caught:
        library.launch(kernel, arguments, grid=(1,), threads=(4,))
    assert caught.value.kind == "wrong-argument"


def test_threadgroup_memory_is_required(library):
    arguments = [np.zeros(64, np.float16), np.zeros(64, np.float32)]
    with pytest.raises(MetalFault, match=r"threadgroup\(0\) 'shared' requires a size"):
        library.launch("counted_rereads", arguments, grid=(1,), threads=(64,))
    with pytest.raises(MetalFault, match="threadgroup-memory-limit"):
        library.launch(
            "counted_rereads", arguments, grid=(1,), threads=(64,), threadgroup_memory={0: 40000}
        )


@pytest.mark.parametrize(("threads", "limit"), [((1024, 2), "1 to 1024"), ((65,), "is 64")])
def test_too_many_threads(library, threads, limit):
    with pytest.raises(MetalFault, match=limit) as caught:
        library.launch("few_threads", [INTS], grid=(1,), threads=threads)
    assert caught.value.kind == "too-many-threads"


def test_unknown_kernel_lists_available_kernels(library):
    with pytest.raises(ValueError, match="no kernel 'fw_threads'.*few_threads"):
        library.launch("fw_threads", [INTS], grid=(1,), threads=(1,))


def test_endless_launch_is_terminated(library):
    with pytest.raises(MetalFault, match="did not finish within 0.5 s") as caught:
        library.launch("runs_for_ever", [INTS], grid=(1,), threads=(1,), timeout=0.5)
    assert caught.value.kind == "timeout"
    library.launch("few_threads", [INTS], grid=(1,), threads=(1,))  # works after a timeout


def test_stack_overflow_is_reported(library):
    with pytest.raises(MetalFault, match="256 KiB of variables") as caught:
        library.launch("fills_the_stack", [np.zeros(32, np.int32)], **ONE_SIMDGROUP)
    assert caught.value.kind == "stack-overflow"


def test_fault_report_text(library):
    with pytest.raises(MetalFault) as caught:
        library.launch("simd_operations", [np.zeros(31, np.int32), np.zeros(768, np.int32)],
                       **ONE_SIMDGROUP, mode="race")  # fmt: skip
    lines = (KERNELS / "semantics.metal").read_text().splitlines()
    error = caught.value
    assert "x[lane]" in lines[error.line - 1]
    assert str(error) == (
        f"{KERNELS / 'semantics.metal'}:{error.line}: out-of-bounds in simd_operations: thread "
        "(31, 0, 0) of threadgroup (0, 0, 0) read 4 bytes at offset 124 of buffer(0), which has "
        "124 bytes.\n  Check the index against the size before the access."
    )


def test_defines_and_include_folders(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "answer.h").write_text("constant int answer = BASE + 2;\n")
    path = tmp_path / "k.metal"
    path.write_text(
        '#include "answer.h"\nkernel void k(device int* x [[buffer(0)]]) { x[0] = answer; }\n'
    )
    x = np.zeros(1, np.int32)
    Library(path, [tmp_path / "folder"], {"BASE": 40}).launch("k", [x], grid=(1,), threads=(1,))
    assert x[0] == 42
    with pytest.raises(MetalError, match="answer.h"):
        Library(path)
