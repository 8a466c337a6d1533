"""Tests' tolerances hold for the loosest arithmetic that a GPU may use.

The emulator's "loose" mode fuses some multiply-adds, reorders sums, perturbs `exp` and other
functions by up to 4 ulp, flushes denormals, and also lowers the threadgroup size limit. A sample
of the other tests runs in this mode with several seeds. Tests of bitwise equality must also pass:
they compare kernels on the same GPU and compiler, which are deterministic.
"""

import mlx.core as mx
import pytest

from tools.metal_emulator import has_clang

from . import test_elementwise, test_flash_attention, test_matmul, test_operations, test_paged
from .matmuls import VARIANTS as MATMUL_VARIANTS
from .support import NO_CLANG, loose_arithmetic

SEEDS = [1, 2, 3, 4]
# Runs of other modules' tests: (function, arguments).
CASES = [
    (test_elementwise.test_axpby, "plain", mx.float32, 1000),
    (test_elementwise.test_axpby, "plain", mx.bfloat16, 255),
    (test_elementwise.test_qk_norm_rope, "plain", mx.float32, 2, 3, 5, 80, 40, False, True),
    (test_elementwise.test_qk_norm_rope, "plain", mx.bfloat16, 1, 4, 3, 128, 64, True, True),
    (test_elementwise.test_cache_write, "plain", mx.bfloat16),
    (test_elementwise.test_copies_with_any_strides, "plain", 2),
    (test_elementwise.test_quantized_embedding, "plain", mx.bfloat16, 4, 128),
    (test_operations.test_swiglu_of_extreme_values, mx.float16),
    (test_operations.test_equals_cpu, "plain", "rms_norm", 3, 9002, mx.float16),
    (test_paged.test_paged_attention, "readable", "plain", mx.float32, True),
    (test_paged.test_paged_attention, "fast", "plain", mx.float32, True),
    (test_paged.test_paged_attention, "fast", "plain", mx.float16, False),
    (test_paged.test_ragged_form, "fast", [0, 3, 4, 9, 23]),
    (test_paged.test_paged_is_bitwise_equal_to_contiguous, mx.float32, 64, 2),
]
for name in test_operations.ON_GPU:
    CASES.append((test_operations.test_equals_cpu, "plain", name, 2, 270, mx.float32))
    CASES.append((test_operations.test_equals_cpu, "plain", name, 3, 34, mx.float16))
for variant in MATMUL_VARIANTS:
    dense = test_matmul.test_dense_is_exact_up_to_rounding
    quantized = test_matmul.test_quantized_is_exact_up_to_rounding
    CASES.append((dense, variant, mx.float32, (13, 34, 519)))
    CASES.append((dense, variant, mx.bfloat16, (33, 65, 640)))
    CASES.append((quantized, variant, mx.bfloat16, 4, 128))
    CASES.append((quantized, variant, mx.float16, 8, 32))
for variant in test_flash_attention.VARIANTS:
    every_mask = test_flash_attention.test_every_mask
    CASES.append((every_mask, variant, "causal", (2, 1, 3, 3, 7, 7), False))
    CASES.append((every_mask, variant, "additive", (1, 1, 2, 33, 67, 80), False))
    CASES.append((every_mask, variant, "none", (1, 1, 2, 1, 600, 16), False))
    CASES.append((test_flash_attention.test_every_dtype_and_head_size, variant, mx.bfloat16, 128))


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__.removeprefix("test_"))
def test_tolerances_hold_in_loose_arithmetic(case, seed):
    if not has_clang():
        pytest.skip(NO_CLANG)
    test, *arguments = case
    with loose_arithmetic(seed):
        test(*arguments)
