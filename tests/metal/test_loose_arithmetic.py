"""Tests' tolerances hold for the loosest arithmetic that a GPU may use.

The emulator's "loose" mode fuses some multiply-adds, reorders sums, perturbs `exp` and other
functions by up to 4 ulp, flushes denormals, and also lowers the threadgroup size limit. A sample
of the other tests runs in this mode with several seeds. Tests of bitwise equality must also pass:
they compare kernels on the same GPU and compiler, which are deterministic.
"""

import mlx.core as mx
import pytest

from tools.metal_emulator import has_clang

from . import (
    test_elementwise,
    test_flash_attention,
    test_matmul,
    test_operations,
    test_paged,
)
from .matmuls import VARIANTS as MATMUL_VARIANTS
from .support import NO_CLANG, loose_arithmetic

SEEDS = [1, 2, 3, 4]
DENSE = [(2, 1, 3, 3, 7, 7), (1, 1, 2, 33, 67, 80), (1, 1, 2, 1, 600, 16)]

CASES = {
    "axpby": lambda: test_elementwise.test_axpby("plain", mx.float32, 1000),
    "axpby, bfloat16": lambda: test_elementwise.test_axpby("plain", mx.bfloat16, 255),
    "swiglu, extreme values": lambda: test_operations.test_swiglu_of_extreme_values(mx.float16),
    "qk_norm_rope, half of the head": lambda: test_elementwise.test_qk_norm_rope(
        "plain", mx.float32, 2, 3, 5, 80, 40, False, True
    ),
    "qk_norm_rope, bfloat16": lambda: test_elementwise.test_qk_norm_rope(
        "plain", mx.bfloat16, 1, 4, 3, 128, 64, True, True
    ),
    "cache_write": lambda: test_elementwise.test_cache_write("plain", mx.bfloat16),
    "copies": lambda: test_elementwise.test_copies_with_any_strides("plain", 2),
    "quantized_embedding": lambda: test_elementwise.test_quantized_embedding(
        "plain", mx.bfloat16, 4, 128
    ),
    "paged_attention, readable": lambda: test_paged.test_paged_attention(
        "readable", "plain", mx.float32, True
    ),
    "paged_attention": lambda: test_paged.test_paged_attention(
        "fast", "plain", mx.float32, True
    ),
    "paged_attention, float16": lambda: test_paged.test_paged_attention(
        "fast", "plain", mx.float16, False
    ),
    "paged_attention, ragged": lambda: test_paged.test_ragged_form(
        "fast", [0, 3, 4, 9, 23]
    ),
    "paged_attention, compared with flash_attention": lambda: (
        test_paged.test_paged_is_bitwise_equal_to_contiguous(mx.float32, 64, 2)
    ),
}  # fmt: skip
for _name in test_operations.ON_GPU:
    CASES[_name] = lambda name=_name: [
        test_operations.test_equals_cpu("plain", name, *shape, dtype)
        for dtype, shape in ((mx.float32, (2, 270)), (mx.float16, (3, 34)))
    ]
CASES["rms_norm, long rows"] = lambda: test_operations.test_equals_cpu(
    "plain", "rms_norm", 3, 9002, mx.float16
)
for _variant in MATMUL_VARIANTS:
    CASES[f"matmul, {_variant}"] = lambda variant=_variant: [
        test_matmul.test_dense_is_exact_up_to_rounding(variant, dtype, shape)
        for dtype, shape in ((mx.float32, (13, 34, 519)), (mx.bfloat16, (33, 65, 640)))
    ]
    CASES[f"quantized_matmul, {_variant}"] = lambda variant=_variant: [
        test_matmul.test_quantized_is_exact_up_to_rounding(variant, dtype, *format)
        for dtype, format in ((mx.bfloat16, (4, 128)), (mx.float16, (8, 32)))
    ]
for _variant in test_flash_attention.VARIANTS:
    CASES[f"flash_attention, {_variant}"] = lambda variant=_variant: [
        test_flash_attention.test_every_mask(variant, kind, shape, has_sinks=False)
        for kind, shape in zip(("causal", "additive", "none"), DENSE, strict=True)
    ]
    CASES[f"flash_attention, {_variant}, bfloat16"] = lambda variant=_variant: (
        test_flash_attention.test_every_dtype_and_head_size(variant, mx.bfloat16, 128)
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", CASES)
def test_tolerances_hold_in_loose_arithmetic(name, seed):
    if not has_clang():
        pytest.skip(NO_CLANG)
    with loose_arithmetic(seed):
        CASES[name]()
