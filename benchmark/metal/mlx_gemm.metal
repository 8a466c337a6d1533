// MLX's dense matmul kernels for many rows, for metal_traffic.py.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/steel/gemm/gemm.h"
#include "mlx/backend/metal/kernels/steel/gemm/kernels/steel_gemm_fused.h"
// clang-format on

// a · bᵀ with tiles of 64×64×16 and 64×32×32 (M×N×K), which MLX selects on most Apple GPUs.
template [[host_name(
    "gemm_nt_64_64_16")]] [[kernel]] decltype(gemm<bfloat16_t, 64, 64, 16, 2, 2, false, true>)
    gemm<bfloat16_t, 64, 64, 16, 2, 2, false, true>;
template [[host_name(
    "gemm_nt_64_32_32")]] [[kernel]] decltype(gemm<bfloat16_t, 64, 32, 32, 2, 2, false, true>)
    gemm<bfloat16_t, 64, 32, 32, 2, 2, false, true>;
