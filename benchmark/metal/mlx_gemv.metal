// MLX's own product of a dense matrix and a vector, for metal_traffic.py.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/steel/utils.h"
#include "mlx/backend/metal/kernels/gemv.h"
// clang-format on

// 4 simdgroups a threadgroup, 4 rows of the matrix a simdgroup, 4 numbers a lane.
template
    [[host_name("gemv")]] [[kernel]] decltype(gemv<bfloat16_t, 4, 1, 1, 32, 4, 4, false, false>)
        gemv<bfloat16_t, 4, 1, 1, 32, 4, 4, false, false>;
