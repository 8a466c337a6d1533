// MLX's quantized matmul kernels, from the headers in its wheel, for metal_traffic.py.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/steel/gemm/gemm.h"
#include "mlx/backend/metal/kernels/quantized_utils.h"
#include "mlx/backend/metal/kernels/quantized.h"
// clang-format on

#define INSTANTIATE(name, ...) \
    template [[host_name(name)]] [[kernel]] decltype(__VA_ARGS__) __VA_ARGS__;

#define INSTANTIATE_FORMAT(suffix, BITS, GROUP_SIZE)                                     \
    INSTANTIATE("qmv_fast" suffix, affine_qmv_fast<bfloat16_t, GROUP_SIZE, BITS, false>) \
    INSTANTIATE("qmm_t" suffix, affine_qmm_t<bfloat16_t, GROUP_SIZE, BITS, true, false>)

INSTANTIATE_FORMAT("_b4_g128", 4, 128)
INSTANTIATE_FORMAT("_b8_g64", 8, 64)
