// MLX's decode attention, from the headers in its wheel: in one pass, and with split keys.
// clang-format off
#include "mlx/backend/metal/kernels/utils.h"
#include "mlx/backend/metal/kernels/sdpa_vector.h"

instantiate_kernel("sdpa_vector", sdpa_vector, bfloat16_t, 64)
instantiate_kernel("sdpa_vector_2pass_1", sdpa_vector_2pass_1, bfloat16_t, 64)
instantiate_kernel("sdpa_vector_2pass_2", sdpa_vector_2pass_2, bfloat16_t, 64)
