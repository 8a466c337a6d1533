// MLX's attention kernels for few queries, for metal_traffic.py.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/sdpa_vector.h"
// clang-format on

#define INSTANTIATE(name, ...) \
    template [[host_name(name)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

INSTANTIATE("sdpa_vector", sdpa_vector<bfloat16_t, 128>)
INSTANTIATE("sdpa_vector_2pass_1_gqa2", sdpa_vector_2pass_1_gqa<bfloat16_t, 128, 128, 2, 2>)
INSTANTIATE("sdpa_vector_2pass_1_gqa4", sdpa_vector_2pass_1_gqa<bfloat16_t, 128, 128, 4, 4>)
INSTANTIATE("sdpa_vector_2pass_2", sdpa_vector_2pass_2<bfloat16_t, 128>)
