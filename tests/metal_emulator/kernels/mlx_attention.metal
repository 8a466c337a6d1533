// MLX's prefill attention, from the headers in its wheel.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/steel/attn/kernels/steel_attention.h"

instantiate_kernel("attention", attention, bfloat16_t, 32, 32, 64, 64, 4, 1, bfloat16_t, float)
