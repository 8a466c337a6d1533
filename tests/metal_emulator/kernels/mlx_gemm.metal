// MLX's dense matmul, from the headers in its wheel.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/steel/gemm/gemm.h"
#include "mlx/backend/metal/kernels/steel/gemm/kernels/steel_gemm_fused.h"

instantiate_kernel("gemm_nt", gemm, bfloat16_t, 32, 32, 16, 2, 2, 0, 1)
