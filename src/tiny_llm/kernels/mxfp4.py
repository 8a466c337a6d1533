"""Weights of 4 bits in floating point, E2M1: `QuantizedWeights` without biases.

A value has a sign, two bits of exponent and one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4 or 6. Each
group of 32 has a scale. MLX's checkpoints store it as mxfp4 does, 8 bits e that mean 2^(e − 127).
The kernels read it as bfloat16, whose own exponent has the same 8 bits.

Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0 (2023).
"""

import mlx.core as mx

E2M1 = "e2m1"  # the mode of a layer with such scales; MLX's own is "mxfp4"

# bfloat16 has seven bits of mantissa below its exponent. An exponent of 0 means 2⁻¹²⁶ · 0.mantissa
# there, and one of 255 with a mantissa is no number, as in mxfp4.
MANTISSA_BITS = 7
TWO_TO_MINUS_127 = 0x0040
BFLOAT16_NAN = 0x7FC0


def e8m0_to_bfloat16(exponents: mx.array) -> mx.array:
    """The scales of mxfp4's exponents: uint8 -> bfloat16, 2^(e − 127)."""
    bits = exponents.astype(mx.uint16) << MANTISSA_BITS
    bits = mx.where(exponents == 0, mx.array(TWO_TO_MINUS_127, mx.uint16), bits)
    bits = mx.where(exponents == 255, mx.array(BFLOAT16_NAN, mx.uint16), bits)
    return bits.view(mx.bfloat16)


def bfloat16_to_e8m0(scales: mx.array) -> mx.array:
    """The exponents of such scales again: bfloat16 -> uint8."""
    return (scales.view(mx.uint16) >> MANTISSA_BITS).astype(mx.uint8)
