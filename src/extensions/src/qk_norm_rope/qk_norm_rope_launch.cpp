#include "src/qk_norm_rope/qk_norm_rope_launch.h"

namespace tiny_llm_ext {

MetalLaunch qk_norm_rope_launch(const QkNormRopeParams& params, Format format, int max_threads) {
    const int64_t heads = static_cast<int64_t>(params.B) * params.L * params.H;
    const int threads = threads_for(heads * SIMD_WIDTH, 256, max_threads);
    return {.kernel = kernel_name("qk_norm_rope_head", format),
            .groups = {.x = ceil_div(heads, threads / SIMD_WIDTH)},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
