// MLX's dense matrix-vector kernel, for metal_traffic.py.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/steel/utils.h"
#include "mlx/backend/metal/kernels/gemv.h"
// clang-format on

// 4 simdgroups per threadgroup, 4 matrix rows per simdgroup, 4 elements per lane.
template
    [[host_name("gemv")]] [[kernel]] decltype(gemv<bfloat16_t, 4, 1, 1, 32, 4, 4, false, false>)
        gemv<bfloat16_t, 4, 1, 1, 32, 4, 4, false, false>;
