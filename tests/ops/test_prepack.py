"""Prepacked weights: results bitwise equal to those of row-major weights."""

from concurrent.futures import ThreadPoolExecutor

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from benchmark.make_checkpoint import qwen3_config, write_checkpoint
from tests.support import as_numpy, random
from tiny_llm import (
    Qwen3ModelWeek1,
    Qwen3ModelWeek2,
    dequantize_linear,
    dispatch_model,
    kernels,
    load,
    load_weights,
)
from tiny_llm.kernels.prepack import prepack_model, prepack_weight

# GPU kernels read row-major weights.
pytestmark = pytest.mark.usefixtures("on_cpu")

HALVES = [mx.bfloat16, mx.float16]


def matrix(O, I, bits, group_size, dtype):
    """Row-major (scales, biases, packed weights)."""
    packed, scales, biases = mx.quantize(random(O, I, dtype=dtype), group_size, bits)
    return scales, biases, packed


def symmetric_biases(scales, bits):
    """Biases of symmetric weights, as MLX stores them and as prepacked weights need them."""
    stored = scales * -(2 ** (bits - 1))
    return stored, stored[:, :0]


def interleaved(parts):
    return tuple(prepack_weight(part, kernels.prepack_rows()) for part in parts)


@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("dtype", [mx.uint32, *HALVES])
@pytest.mark.parametrize(("O", "W"), [(64, 1), (192, 3), (1088, 130), (64, 0), (0, 8)])
def test_prepack_into_memory(O, W, dtype, rows):
    extension = kernels.extension()
    matrix = mx.random.randint(0, 1000, (O, W)).astype(dtype)
    memory = extension.huge_pages(2 * matrix.nbytes + 64)
    first = extension.prepack_weight(matrix, rows, memory, 0)
    offset = -(-matrix.nbytes // 64) * 64
    second = extension.prepack_weight(matrix[::-1], rows, memory, offset)  # not contiguous
    assert mx.array_equal(first, prepack_weight(matrix, rows))
    assert mx.array_equal(second, prepack_weight(matrix[::-1], rows))
    del memory, first
    assert mx.array_equal(second, prepack_weight(matrix[::-1], rows)), (
        "expected the second array to keep the shared memory alive"
    )


@pytest.mark.parametrize("rows", [1, 16, 64])
@pytest.mark.parametrize("dtype", [mx.uint32, *HALVES])
@pytest.mark.parametrize(("O", "W"), [(64, 1), (192, 3), (1088, 130), (64, 4097), (64, 0), (0, 8)])
@pytest.mark.parametrize(("begin", "alone"), [(0, False), (13, True)])
def test_prepack_from_a_file(O, W, dtype, rows, begin, alone, tmp_path):
    """Reads at any byte offset, in blocks, without writing past the end."""
    matrix = mx.random.randint(0, 1000, (O, W)).astype(dtype)
    content = bytes(memoryview(np.array(matrix.view(mx.uint8))))
    (tmp_path / "file").write_bytes(b"x" * begin + content + b"the next tensor")
    extension = kernels.extension()
    memory = extension.huge_pages(matrix.nbytes + 64)
    shape_alone = mx.zeros((O, W), dtype)
    file = str(tmp_path / "file")
    moved = extension.prepack_weight_from_file(shape_alone, file, begin, rows, memory, 64, alone)
    assert moved.dtype == dtype
    assert mx.array_equal(moved, prepack_weight(matrix, rows))


def test_unsupported_files_are_rejected(tmp_path):
    memory, matrix = kernels.extension().huge_pages(2**20), mx.zeros((64, 1024))
    file = tmp_path / "file"
    file.write_bytes(b"x" * matrix.nbytes)
    read = kernels.extension().prepack_weight_from_file
    with pytest.raises(RuntimeError, match=r"prepack_weight_from_file: .*file is truncated"):
        read(matrix, str(file), 1, 16, memory, 0)
    with pytest.raises(RuntimeError, match=r"none cannot be read: No such file"):
        read(matrix, str(tmp_path / "none"), 0, 16, memory, 0)
    with pytest.raises(ValueError, match="expected begin to be at least 0, got -1"):
        read(matrix, str(file), -1, 16, memory, 0)
    with pytest.raises(ValueError, match="O a multiple of 16"):
        read(mx.zeros((40, 3)), str(file), 0, 16, memory, 0)


LAZY, VIEW = mx.zeros((512,)) + 1, mx.zeros((512, 2))[:, 0]


@pytest.mark.parametrize(
    ("matrix", "rows", "memory", "offset", "reason"),
    [
        (mx.zeros((40, 3)), 16, 4096, 0, r"O a multiple of 16, got \(40,3\) in float32"),
        (mx.zeros((40, 3)), 0, 4096, 0, "expected a positive number of rows, got 0"),
        (mx.zeros((40, 3)), -8, 4096, 0, "expected a positive number of rows, got -8"),
        (mx.zeros((16, 3), mx.uint8), 16, 4096, 0, "elements of 2 or 4 bytes"),
        (mx.zeros((16, 3, 2)), 16, 4096, 0, "expected a matrix O×W"),
        (mx.zeros((16, 64)), 16, 4096, 64, "got 4096 bytes at 64 of 4096"),
        (mx.zeros((16, 3)), 16, 4096, 32, "a multiple of 64 bytes"),
        (mx.zeros((16, 3)), 16, 4096, -64, "expected memory with space for the matrix"),
        (mx.zeros((16, 3)), 16, -1, 0, "expected bytes to be at least 0, got -1"),
        (mx.zeros((16, 3)), 16, LAZY, 0, r"expected memory from huge_pages\(\)"),
        (mx.zeros((16, 3)), 16, VIEW, 0, r"expected memory from huge_pages\(\)"),
        (mx.zeros((40, 3)), 16, None, 0, "expected a multiple of 16 rows, got 40"),
    ],
)
def test_invalid_arguments_are_rejected(matrix, rows, memory, offset, reason):
    extension = kernels.extension()
    mx.eval(VIEW)
    with pytest.raises(ValueError, match=reason):  # noqa: PT012
        if memory is None:
            prepack_weight(matrix, rows)
        memory = extension.huge_pages(memory) if isinstance(memory, int) else memory
        extension.prepack_weight(matrix, rows, memory, offset)


def test_words_of_sixteen_rows_are_interleaved():
    rows = mx.arange(48 * 3).reshape(48, 3).astype(mx.uint32)
    expected = np.array(rows).reshape(3, 16, 3).transpose(0, 2, 1)
    np.testing.assert_array_equal(np.array(prepack_weight(rows, 16)), expected)


def test_rows_per_block_of_each_kernel(instruction_set):
    expected = {"neon": 8, "avx2": 16, "avx512vnni": 64, "avx512": 64, "amx": 16}
    assert kernels.prepack_rows() == expected.get(instruction_set, 0)


@pytest.mark.parametrize("M", [0, 1, 2, 7, 33, 193])
@pytest.mark.parametrize("blocks", [1, 5])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("half", HALVES, ids=["bfloat16", "float16"])
@pytest.mark.parametrize(("I", "group_size"), [(160, 32), (192, 64), (1152, 128)])
def test_matmul_is_bitwise_equal(prepacked_isa, I, group_size, half, bits, blocks, M):
    O = blocks * kernels.prepack_rows()
    scales, biases, words = rows = matrix(O, I, bits, group_size, half)
    a = random(M, I, dtype=half)
    expected = kernels.quantized_matmul(scales, biases, group_size, bits, a, words)
    scales, biases, words = interleaved(rows)
    actual = kernels.quantized_matmul(scales, biases, group_size, bits, a, words)
    assert mx.array_equal(actual, expected)
    stored, empty = symmetric_biases(scales, bits)
    expected = kernels.quantized_matmul(scales, stored, group_size, bits, a, words)
    actual = kernels.quantized_matmul(scales, empty, group_size, bits, a, words)
    assert mx.array_equal(actual, expected), "expected the bits of stored biases without them"


def test_mixed_layouts(prepacked_isa):
    rows = [matrix(O, 256, 4, 64, mx.bfloat16) for O in (192, 80, 128)]
    a = random(3, 256, dtype=mx.bfloat16)
    expected = [kernels.quantized_matmul(s, b, 64, 4, a, words) for s, b, words in rows]
    mixed = [interleaved(rows[0]), rows[1], interleaved(rows[2])]
    scales, biases, words = (list(parts) for parts in zip(*mixed, strict=True))
    for actual, single in zip(
        kernels.multi_quantized_matmul(scales, biases, 64, 4, a, words), expected, strict=True
    ):
        assert mx.array_equal(actual, single)


@pytest.mark.parametrize("rows", [16, 64])
@pytest.mark.parametrize("bits", [4, 8])
def test_embedding_rows_are_bitwise_equal(instruction_set, dtype, bits, rows):
    scales, biases, words = table = matrix(192, 192, bits, 64, dtype)
    ids = mx.array([[0, 15, 16, 191], [-1, -192, 192, 99]])
    expected = as_numpy(kernels.quantized_embedding(ids, scales, biases, 64, bits, words))
    scales, biases, words = (prepack_weight(part, rows) for part in table)
    actual = kernels.quantized_embedding(ids, scales, biases, 64, bits, words)
    np.testing.assert_array_equal(as_numpy(actual), expected)
    stored, empty = symmetric_biases(scales, bits)
    expected = kernels.quantized_embedding(ids, scales, stored, 64, bits, words)
    actual = kernels.quantized_embedding(ids, scales, empty, 64, bits, words)
    np.testing.assert_array_equal(as_numpy(actual), as_numpy(expected))


def test_model_of_symmetric_weights_has_no_biases(prepacked_isa, monkeypatch):
    mlx_model, _ = load("demo")
    for layer in quantized_layers(mlx_model):
        layer.biases = layer.scales * -8
    stored = [mx.array(layer.biases) for layer in quantized_layers(mlx_model)]
    mx.eval(stored)
    with monkeypatch.context() as patch:
        patch.setattr("tiny_llm.kernels.prepack.prepack_rows", lambda: 0)
        expected = logits(dispatch_model("rows", mlx_model, 3))
    prepacked = prepack_model(mlx_model)
    assert {layer.biases.size for layer in quantized_layers(prepacked)} == {0}
    assert mx.array_equal(logits(dispatch_model("interleaved", prepacked, 3)), expected)
    for layer, biases in zip(quantized_layers(mlx_model), stored, strict=True):
        assert mx.array_equal(layer.biases, biases), "expected the given model's biases again"

    layer = mlx_model.layers[0].mlp.down_proj
    layer.biases[-1, -1] += 1
    prepacked = prepack_model(mlx_model).layers[0].mlp.down_proj
    assert prepacked.biases.shape == prepacked.scales.shape, "one bias is not symmetric"
    monkeypatch.setenv("TINY_LLM_MATMUL", "prefetched")  # the course's kernels read all biases
    assert all(layer.biases.size > 0 for layer in quantized_layers(prepack_model(mlx_model)))


@pytest.mark.parametrize(
    ("variable", "value", "rows", "has_biases", "message"),
    [
        ("CPU_ISA", "portable", 0, True, "the portable kernels read row-major weights"),
        ("MATMUL", "factored", 0, True, "selected by TINY_LLM_MATMUL reads row-major weights"),
        ("MATMUL", "prefetched", 32, False, "with prepacked weights, the kernel selected by"),
    ],
)
def test_unsupported_layouts_are_rejected(
    prepacked_isa, monkeypatch, variable, value, rows, has_biases, message
):
    """Also weights without biases, which the course's kernels do not read if prepacked."""
    monkeypatch.setenv(f"TINY_LLM_{variable}", value)
    assert kernels.prepack_rows() == rows
    parts = matrix(64, 128, 4, 64, mx.bfloat16)
    scales, biases, words = (prepack_weight(part, rows or 16) for part in parts)
    a = random(1, 128, dtype=mx.bfloat16)
    with pytest.raises(ValueError, match=message):
        kernels.quantized_matmul(scales, biases if has_biases else None, 64, 4, a, words)


def test_errors_name_the_argument(prepacked_isa):
    R = kernels.prepack_rows()
    rows = matrix(2 * R, 128, 4, 64, mx.bfloat16)
    scales, biases, words = interleaved(rows)
    eights = prepack_weight(rows[2], 8)
    valid = {"scales": scales, "biases": biases, "group_size": 64, "bits": 4, "b": words}
    valid["a"] = random(1, 128, dtype=mx.bfloat16)
    for changes, message in (
        ({"b": eights}, rf"expected packs of {R} rows, got .*,16,8\)"),
        ({"b": words[:, :8]}, rf"expected b of shape \(2,16,{R}\).* \(2,8,{R}\)"),
        ({"scales": rows[0]}, rf"expected scales of shape \(2,2,{R}\), got .*,2\)"),
        ({"b": rows[2]}, rf"expected scales of shape .*,2\), got \(2,2,{R}\)"),
    ):
        with pytest.raises(ValueError, match=message):
            kernels.quantized_matmul(**valid | changes)
    with pytest.raises(ValueError, match=rf"expected scales of shape .*,8\), got \(2,2,{R}\)"):
        kernels.quantized_embedding(mx.array([1]), scales, biases, 64, 4, eights)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> str:
    """Checkpoint whose LM head has an odd number of rows, so it stays row-major."""
    folder = tmp_path_factory.mktemp("untied")
    config = qwen3_config(128, 2, 256, 4, 2, False, head_dim=64, vocab_size=4605)
    write_checkpoint(folder, config, bits=4, group_size=64)
    return str(folder)


@pytest.fixture(params=["demo", "untied"])
def model_name(request, checkpoint) -> str:
    return "demo" if request.param == "demo" else checkpoint


def quantized_layers(mlx_model):
    return [layer for _, layer in sorted(mlx_model.named_modules()) if "scales" in layer]


def load_row_major(name, monkeypatch):
    """Loads a model for row-major kernels, so its weights are not prepacked."""
    with monkeypatch.context() as patch:
        patch.setattr("tiny_llm.kernels.prepack.prepack_rows", lambda: 0)
        return load_weights(name)[0]


def arrays_of(mlx_model) -> list[mx.array]:
    return [array for _, array in tree_flatten(mlx_model.parameters())]


def test_loading_prepacks_eligible_layers(prepacked_isa, model_name, monkeypatch):
    rows, prepacked = load_row_major(model_name, monkeypatch), load_weights(model_name)[0]
    assert prepack_model(prepacked) is prepacked
    R = kernels.prepack_rows()
    for before, after in zip(quantized_layers(rows), quantized_layers(prepacked), strict=True):
        for part in ("weight", "scales", "biases"):
            is_eligible = before.weight.shape[0] % R == 0
            expected = prepack_weight(before[part], R) if is_eligible else before[part]
            assert mx.array_equal(after[part], expected)
        words = after.weight
        assert mx.array_equal(dequantize_linear(after), dequantize_linear(before))
        assert after.weight is words, "still prepacked"


def test_row_major_weights_are_restored_in_any_thread(prepacked_isa):
    mlx_model, _ = load("demo")
    layer = mlx_model.layers[0].mlp.down_proj
    expected = mx.array(layer.weight)
    mx.eval(expected)
    Qwen3ModelWeek2(mlx_model)
    with ThreadPoolExecutor() as other_thread:
        other_thread.submit(mx.eval, layer.weight).result()
        assert mx.array_equal(layer.weight, expected)


def test_at_most_one_array_is_duplicated(prepacked_isa):
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    weights, _ = load_weights("demo")
    model = dispatch_model("demo", weights, 3)
    arrays = arrays_of(weights)
    total, largest = sum(x.nbytes for x in arrays), max(x.nbytes for x in arrays)
    assert mx.get_active_memory() - before < 1.02 * total
    assert mx.get_peak_memory() - before < 1.02 * (total + largest)
    del model


def test_row_major_weights_are_released(prepacked_isa):
    mlx_model, _ = load("demo")
    total = sum(array.nbytes for array in arrays_of(mlx_model))
    before = mx.get_active_memory()
    model = dispatch_model("demo", mlx_model, 2)
    assert mx.get_active_memory() - before < 0.02 * total
    del model


def test_loading_keeps_row_major_for_row_major_kernels(monkeypatch, load_either):
    monkeypatch.setenv("TINY_LLM_CPU_ISA", "portable")
    mlx_model, _ = load_either("demo")
    assert prepack_model(mlx_model) is mlx_model
    assert {layer.weight.ndim for layer in quantized_layers(mlx_model)} == {2}


def test_week_1_after_week_2(prepacked_isa, load_either):
    """Week 1's MLX matmuls must read Week 2's prepacked weights as row-major."""
    ids = mx.array([[5, 4, 3, 2, 1]])
    expected = Qwen3ModelWeek1(load("demo")[0])(ids)
    mlx_model, _ = load_either("demo")
    for week in (1, 2, 1, 3, 1):
        model = dispatch_model("demo", mlx_model, week)
        if week == 1:
            assert mx.array_equal(model(ids), expected)


def test_logits_are_bitwise_equal(prepacked_isa, model_name, load_either, monkeypatch):
    rows = load_row_major(model_name, monkeypatch)
    given, _ = load_either(model_name)
    for week in (2, 3, 2):
        with monkeypatch.context() as patch:
            patch.setattr("tiny_llm.kernels.prepack.prepack_rows", lambda: 0)
            expected = logits(dispatch_model("rows", rows, week))
        model = dispatch_model("interleaved", given, week)
        assert model.layers[0].mlp.w_down.weight.ndim == 3
        assert mx.array_equal(logits(model), expected)


def logits(model) -> mx.array:
    cache = model.create_kv_cache()
    steps = [model(mx.array([[5, 4, 3, 2, 1]]), 0, cache)]
    steps += [model(mx.array([[7]]), offset, cache) for offset in (5, 6)]
    return mx.concatenate(steps, axis=1)
