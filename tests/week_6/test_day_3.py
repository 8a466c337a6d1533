"""Week 6, day 3, optional: 8-bit KV cache."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, assert_close, assert_equal, random
from tiny_llm import LLM, SamplingParams, kernels
from tiny_llm.kv_storage.int8_rows import (
    dequantize_rows,
    quantize_rows,
    read_int8_pages,
    row_scales,
    write_int8_rows,
)

pytestmark = pytest.mark.usefixtures("on_cpu")

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def row(integers: list[int], scale: float) -> mx.array:
    """A stored row: D integers followed by the bytes of their scale."""
    data = np.concatenate([np.array(integers, np.int8), np.float32([scale]).view(np.int8)])
    return mx.array(data)


def assert_same(actual: mx.array, expected: mx.array, what: str) -> None:
    assert_equal((actual.shape, actual.dtype), (expected.shape, expected.dtype), what)
    a, e = np.array(actual), np.array(expected)
    np.testing.assert_array_equal(a, e, err_msg=f"{what}: expected {e.tolist()}, got {a.tolist()}")


def test_task_1_example():
    scales = row_scales(mx.array([[1.0, -12.7, 0.0], [2.54, 0.1, 0.2]]))
    assert scales.shape == (2, 1), f"expected one scale per row, 2×1, got {scales.shape}"
    assert_close(scales, mx.array([[0.1], [0.02]]), "max |x| / 127 of each row", ulps=2)


def test_task_1_one_scale_per_token_and_head():
    x = random(2, 5, 3, 16) * mx.array([1.0, 100.0, 0.01])[:, None]
    scales = row_scales(x)
    expected = np.abs(as_numpy(x)).max(-1, keepdims=True) / np.float32(127)
    assert_close(scales, mx.array(expected), "scales of heads with different magnitudes", ulps=2)


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_task_1_non_finite_element_makes_the_scale_nan(bad):
    scales = row_scales(mx.array([[1.0, bad], [1.27, 0.5]])).flatten().tolist()
    assert np.isnan(scales[0]), f"expected NaN for a row with {bad}, got {scales[0]}"
    assert np.isfinite(scales[1]), f"expected a finite scale for the finite row, got {scales[1]}"


def test_task_1_zeros_and_tiny_rows_have_scale_0():
    scales = row_scales(mx.array([[0.0, 0.0], [1e-37, 0.0]])).flatten().tolist()
    assert scales == [0.0, 0.0], f"expected 0 where the scale would be subnormal, got {scales}"


def test_task_2_example():
    rows = quantize_rows(mx.array([[12.7, -12.7, 1.26, 0.04, 0.0]]))
    assert rows.shape == (1, 9), f"expected 5 integers and 4 scale bytes, got {rows.shape}"
    assert rows.dtype == mx.int8, f"expected int8, got {rows.dtype}"
    integers = rows[0, :5].tolist()
    expected = [127, -127, 13, 0, 0]
    assert integers == expected, f"expected x / 0.1, rounded: {expected}, got {integers}"
    scale = np.array(rows)[0, 5:].view(np.float32)[0]
    assert abs(scale - 0.1) < 1e-6, f"expected scale 0.1 in the last four bytes, got {scale}"


def test_task_2_dequantized_row():
    floats = dequantize_rows(mx.stack([row([127, -3, 0, 5], 0.5), row([-128, 1, 2, 3], 2.0)]))
    assert floats.dtype == mx.float32, f"expected float32, got {floats.dtype}"
    expected = mx.array([[63.5, -1.5, 0.0, 2.5], [-256.0, 2.0, 4.0, 6.0]])
    assert_same(floats, expected, "integers · scale")


def test_task_2_error_is_at_most_half_a_step(dtype):
    x = (random(40, 2, 24) * mx.exp(2 * random(40, 2, 1))).astype(dtype)
    floats = dequantize_rows(quantize_rows(x))
    steps = np.abs(as_numpy(x)).max(-1, keepdims=True) / 127
    error = (np.abs(as_numpy(floats) - as_numpy(x)) / steps).max()
    assert error <= 0.501, f"expected an error of at most half a step of the scale, got {error:.3f}"


def near_ties(num_rows: int) -> mx.array:
    """Rows whose quotients by their scale are near n + 1/2, for n in 0 … 126.

    There, x / scale and x · (1 / scale) may round to different integers.
    """
    steps = np.linspace(0.01, 1, num_rows, dtype=np.float32)[:, None]
    return mx.array(steps * np.append(np.arange(127) + 0.5, 127).astype(np.float32))


def test_task_2_multiplies_by_the_inverse_of_the_scale():
    x = near_ties(100)
    rows = np.array(quantize_rows(x))
    inverses = np.float32(1) / rows[:, -4:].copy().view(np.float32)
    expected = np.rint(np.array(x) * inverses)
    num_different = int((rows[:, :-4] != expected).sum())
    assert_equal(
        num_different, 0, "integers other than x · (1 / scale), rounded, as the kernels do"
    )


def test_task_2_zeros_stay_zeros_and_non_finite_rows_are_nan():
    nan = float("nan")
    rows = quantize_rows(mx.array([[0.0, 0.0], [float("inf"), 1.0], [1.0, nan], [1.0, 0.5]]))
    floats = as_numpy(dequantize_rows(rows))
    assert floats[0].tolist() == [0.0, 0.0], f"expected zeros, got {floats[0].tolist()}"
    assert np.isnan(floats[1:3]).all(), f"expected only NaN, got {floats[1:3].tolist()}"
    assert np.isfinite(floats[3]).all(), f"expected a finite row, got {floats[3].tolist()}"
    integers = np.array(rows)[1:3, :2].tolist()
    assert integers == [[0, 0], [0, 0]], f"expected integers 0 with a NaN scale, got {integers}"


def test_task_2_rows_are_batch_invariant():
    x = random(2, 9, 16) * mx.exp(random(2, 9, 1))
    together = quantize_rows(x)
    assert_same(together[1, 4], quantize_rows(x[1, 4]), "a row in a batch and alone")
    chunks = mx.concatenate([quantize_rows(x[:, :5]), quantize_rows(x[:, 5:])], axis=1)
    assert_same(chunks, together, "rows in two chunks and in one")


def some_pages(num_pages: int, H: int, page_size: int, D: int) -> mx.array:
    count = num_pages * H * page_size * (D + 4)
    return (mx.arange(count) % 101 - 50).astype(mx.int8).reshape(num_pages, H, page_size, D + 4)


def test_task_3_token_is_written_to_its_slot():
    """With pages of 4 tokens, slot 6 is row 2 of page 1 for each head."""
    pages, token = some_pages(3, 2, 4, 8), random(1, 2, 1, 8)
    before = pages + 0
    written = write_int8_rows(pages, token, mx.array([[6]], mx.int32))
    assert written.shape == pages.shape, f"expected {pages.shape}, got {written.shape}"
    assert_same(written[1, :, 2], quantize_rows(token)[0, :, 0], "row 2 of page 1")
    changed = np.argwhere((np.array(written) != np.array(before)).any(-1)).tolist()
    assert_equal(changed, [[1, 0, 2], [1, 1, 2]], "[page, head, row] to change")
    copied = "expected the caller's pages to be unchanged: copy them first"
    assert mx.array_equal(pages, before), copied


def test_task_3_slot_minus_1_skips_a_token():
    pages, tokens = some_pages(2, 2, 4, 8), random(2, 2, 2, 8)
    written = write_int8_rows(pages, tokens, mx.array([[-1, 3], [-1, -1]], mx.int32))
    assert_same(written[0, :, 3], quantize_rows(tokens)[0, :, 1], "slot 3")
    assert_same(written[1], pages[1], "last page, which no slot refers to")
    nothing = write_int8_rows(pages, tokens, mx.array([[-1, -1], [-1, -1]], mx.int32))
    assert_same(nothing, pages, "pages after a write without tokens")


@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_task_3_equals_the_kernel(dtype, page_size):
    pages = some_pages(-(-16 // page_size), 2, page_size, 24)
    tokens = random(3, 2, 4, 24, dtype=dtype)
    slots = mx.array([[5, 6, 7, 8], [0, -1, 1, -1], [15, 14, 13, 12]], mx.int32)
    expected = kernels.paged_cache_write(pages, tokens, slots)
    assert_same(write_int8_rows(pages, tokens, slots), expected, "pages written by the kernel")


def test_task_3_near_ties_equal_the_kernel():
    tokens = near_ties(100).reshape(1, 2, 50, 128)
    pages = some_pages(4, 2, 16, 128)
    slots = mx.arange(50, dtype=mx.int32)[None]
    expected = np.array(kernels.paged_cache_write(pages, tokens, slots))
    num_different = int((np.array(write_int8_rows(pages, tokens, slots)) != expected).sum())
    assert_equal(num_different, 0, "bytes other than the kernel's, which multiplies by 1 / scale")


def test_task_4_pages_of_the_block_table():
    pages = mx.stack([row([page, 1, 2], 0.5) for page in range(7)])[:, None, None]
    floats, table = read_int8_pages(pages, mx.array([[5, 2], [0, 6]], mx.int32))
    assert table.tolist() == [[0, 1], [2, 3]], f"expected [[0, 1], [2, 3]], got {table.tolist()}"
    first = floats[:, 0, 0, 0].tolist()
    assert first == [2.5, 1.0, 0.0, 3.0], f"expected page numbers 5, 2, 0, 6 times 0.5, got {first}"


def test_task_4_reads_only_the_table_pages():
    floats, _ = read_int8_pages(some_pages(100, 1, 4, 8), mx.array([[17], [3]], mx.int32))
    assert_equal(floats.shape, (2, 1, 4, 8), "2×1×4×8, the table's 2 pages of 100")
    pages = some_pages(3, 1, 4, 8)
    floats, table = read_int8_pages(pages, mx.array([[2, -1], [1, 0]], mx.int32))
    assert table.dtype == mx.int32, f"expected an int32 table, got {table.dtype}"
    read = [int(table[b, j]) for b, j in ((0, 0), (1, 0), (1, 1))]
    assert_same(floats[mx.array(read)], dequantize_rows(pages[mx.array([2, 1, 0])]), "pages 2 1 0")
    padding = int(table[0, 1])
    assert 0 <= padding < len(floats), f"expected a valid page for the padding, got {padding}"


def test_task_4_engine_output_equals_the_kernel(demo):
    tokens = {}
    for backend in ("paged", "reference"):
        llm = LLM(demo, kv_cache_dtype="int8", attention_backend=backend, kv_cache_bytes=2**21)
        prompts = ["What is the KV cache?", "Name the primary colours."]
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False)
        for output in outputs:
            assert output.error is None, output.error
        tokens[backend] = [output.token_ids for output in outputs]
    assert_equal(tokens["reference"], tokens["paged"], "the kernel's tokens")
