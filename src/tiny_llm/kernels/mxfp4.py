"""MXFP4: 4-bit floating-point weights (E2M1) with 8-bit scales.

Stored as `QuantizedWeights` without biases. A value has a sign bit, two exponent bits and one
mantissa bit: ±0, 0.5, 1, 1.5, 2, 3, 4 or 6. Each group of 32 shares a scale. MLX checkpoints store
scales in MXFP4's E8M0 format: an 8-bit e for 2^(e − 127). The kernels read scales as bfloat16,
whose exponent has the same 8 bits.

Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0 (2023).
"""

import mlx.core as mx

E2M1 = "e2m1"  # quantization mode of MXFP4 layers with bfloat16 instead of E8M0 scales

# bfloat16 has seven mantissa bits below its exponent. Exponent 0 is subnormal, 2⁻¹²⁶ · 0.mantissa,
# so 2⁻¹²⁷ needs a nonzero mantissa. Exponent 255 with a nonzero mantissa is NaN, like E8M0's 255.
MANTISSA_BITS = 7
TWO_TO_MINUS_127 = 0x0040
BFLOAT16_NAN = 0x7FC0


def e8m0_to_bfloat16(exponents: mx.array) -> mx.array:
    """Converts E8M0 scales to bfloat16: uint8 e -> 2^(e − 127)."""
    bits = exponents.astype(mx.uint16) << MANTISSA_BITS
    bits = mx.where(exponents == 0, mx.array(TWO_TO_MINUS_127, mx.uint16), bits)
    bits = mx.where(exponents == 255, mx.array(BFLOAT16_NAN, mx.uint16), bits)
    return bits.view(mx.bfloat16)


def bfloat16_to_e8m0(scales: mx.array) -> mx.array:
    """Converts scales from `e8m0_to_bfloat16` back to E8M0: bfloat16 -> uint8."""
    return (scales.view(mx.uint16) >> MANTISSA_BITS).astype(mx.uint8)
