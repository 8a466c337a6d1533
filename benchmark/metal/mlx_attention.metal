// MLX's attention kernel for many queries, for metal_traffic.py: blocks of 32 queries and 16 keys,
// as MLX selects for head size 128.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/steel/attn/kernels/steel_attention.h"
// clang-format on

template [[host_name(
    "attention_32_16_128")]] [[kernel]] decltype(attention<bfloat16_t, 32, 16, 128, 128, 4, 1>)
    attention<bfloat16_t, 32, 16, 128, 128, 4, 1>;
