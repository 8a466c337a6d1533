#include "src/qk_norm_rope/qk_norm_rope_launch.h"

namespace tiny_llm_ext {

MetalLaunch qk_norm_rope_launch(const QkNormRopeParams& params, Format format, int max_threads) {
    const int64_t heads = static_cast<int64_t>(params.B) * params.L * params.H;
    return simdgroup_launch(kernel_name("qk_norm_rope_head", format), heads, max_threads, params);
}

}  // namespace tiny_llm_ext
