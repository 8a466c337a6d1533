// MLX's quantized matmul, from the headers in its wheel: matvec for decoding, tiles for prefill.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/steel/gemm/gemm.h"
#include "mlx/backend/metal/kernels/quantized_utils.h"
#include "mlx/backend/metal/kernels/quantized.h"

instantiate_kernel("qmv_fast", affine_qmv_fast, bfloat16_t, 64, 4, 0)
instantiate_kernel("qmv", affine_qmv, bfloat16_t, 64, 4, 0)
instantiate_kernel("qmm_t", affine_qmm_t, bfloat16_t, 64, 4, 0, 0)
