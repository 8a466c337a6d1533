"""Repacked blocks, compared with the `gguf` package's dequantization."""

import gguf
import mlx.core as mx
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type

from tests.support import as_numpy
from tiny_llm.kernels.prepack import bfloat16_to_e8m0
from tiny_llm.models.gguf import blocks
from tiny_llm.models.gguf.blocks import LookupTable
from tiny_llm.models.gguf.reader import TYPES, GGUFTensor

ROWS, COLUMNS = 530, 1024  # several chunks of 256 kB
# First bytes of a block's float16 numbers; MXFP4's first byte is an exponent.
FLOATS = {
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q6_K": (208,),
    "MXFP4": (),
}


def random_blocks(kind: Type) -> np.ndarray:
    """Blocks of random bytes, with scales of either sign around 0.01."""
    rng = np.random.default_rng(kind)
    size, num_bytes = gguf.GGML_QUANT_SIZES[kind]
    data = rng.integers(0, 256, (ROWS * COLUMNS // size, num_bytes), np.uint8)
    for start in FLOATS[kind.name]:
        numbers = rng.standard_normal((len(data), 1)).astype(np.float16) / np.float16(100)
        data[:, start : start + 2] = numbers.view(np.uint8)
    if kind == Type.MXFP4:
        data[:, 0] = rng.integers(100, 140, len(data))
    return data.reshape(ROWS, -1)


@pytest.fixture(params=[True, False], ids=["cpu", "gpu"])
def _is_cpu(request, monkeypatch):
    monkeypatch.setattr(blocks, "has_cpu_kernels", lambda: request.param)


def stored(tmp_path, kind: Type, data: np.ndarray) -> GGUFTensor:
    file = tmp_path / "data"
    file.write_bytes(bytes(64) + data.tobytes())
    return GGUFTensor(TYPES[kind], (ROWS, COLUMNS), file, 64)


def repacked(tmp_path, kind: Type, data: np.ndarray) -> np.ndarray:
    """Weights of repacked blocks, computed in float32."""
    tensor = stored(tmp_path, kind, data)
    target, arrays = blocks.repacked_format(tensor), blocks.read_tensor(tensor)
    types = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    assert types == blocks.array_types(tensor)
    scales, biases = arrays["scales"], arrays.get("biases")
    if scales.dtype == mx.bfloat16:
        scales = bfloat16_to_e8m0(scales)
    if biases is not None:
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    weight = mx.dequantize(
        arrays["weight"], scales, biases, 32, target.bits, target.mode, dtype=mx.float32
    )
    return as_numpy(weight)


@pytest.mark.usefixtures("_is_cpu")
@pytest.mark.parametrize(
    "kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.MXFP4]
)
def test_exact_types(tmp_path, kind):
    data = random_blocks(kind)
    actual = repacked(tmp_path, kind, data)
    np.testing.assert_array_equal(actual, gguf.dequantize(data, kind))


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K])
def test_lookup_tables(tmp_path, kind):
    data = random_blocks(kind)
    table = LookupTable(stored(tmp_path, kind, data))
    table.weight = table.read()
    ids = [[0, ROWS - 1], [7, 7]]
    actual = as_numpy(table.lookup(mx.array(ids)))
    np.testing.assert_array_equal(actual, gguf.dequantize(data, kind)[np.array(ids)])


@pytest.mark.usefixtures("_is_cpu")
@pytest.mark.parametrize("kind", [Type.Q4_K, Type.Q5_K])
def test_k_quants_round_only_scales_and_biases(tmp_path, kind):
    data = random_blocks(kind)
    actual = repacked(tmp_path, kind, data)
    assert relative_error(actual, gguf.dequantize(data, kind)) < 2.5e-4
    # With the factors 1 of scales and biases, float16 is exact.
    groups = data.reshape(-1, data.shape[1] * 256 // COLUMNS).copy()
    groups[:, 4:12] = 1
    groups[:, 12:16] = 0x11
    plain = groups.reshape(data.shape)
    exact = repacked(tmp_path, kind, plain)
    np.testing.assert_array_equal(exact, gguf.dequantize(plain, kind))


def test_q6_k_error_is_an_eighth_of_the_larger_step(tmp_path):
    data = random_blocks(Type.Q6_K)
    super_blocks = data.reshape(-1, 210)
    super_blocks[0, 192:208] = np.tile(np.array([100, -100], np.int8), 8).view(np.uint8)
    super_blocks[0, :192] = 0  # all integers are −32, so that the range is symmetric
    super_blocks[1, 192:208] = 0
    actual = repacked(tmp_path, Type.Q6_K, data)
    expected = gguf.dequantize(data, Type.Q6_K)
    d = super_blocks[:, 208:].copy().view(np.float16).astype(np.float32)
    steps = abs(d * super_blocks[:, 192:208].view(np.int8)).reshape(-1, 8, 2)
    larger = steps.max(axis=2, keepdims=True)
    errors = abs(actual - expected).reshape(-1, 8, 2, 16)
    # 32 steps, each rounded to float16, besides the eighth.
    limit = (1 / 7.9 + 32 * 2**-11) * larger[..., None]
    assert (errors <= limit).all()
    is_exact = np.broadcast_to((steps == larger)[..., None], errors.shape).copy()
    is_exact.reshape(-1, 256)[0] = False  # opposite scales have a longer step
    is_opposite = np.isclose(steps.min(axis=2), steps.max(axis=2))  # may have opposite signs, too
    is_exact &= ~is_opposite[..., None, None]
    assert (
        errors[is_exact] <= (32 * 2**-11 * larger[..., None] * np.ones_like(errors))[is_exact]
    ).all()
    assert relative_error(actual, expected) < 4e-3


def relative_error(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(np.sqrt(((actual - expected) ** 2).mean() / (expected**2).mean()))
