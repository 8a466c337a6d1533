#include "src/paged_attention/paged_attention_launch.h"

namespace tiny_llm_ext {

MetalLaunch paged_attention_simple_launch(const PagedAttentionParams& params, Format format) {
    return {.kernel = kernel_name("paged_attention_simple", format),
            .groups = {.x = params.T, .y = params.H_q},
            .threads = {.x = SIMD_WIDTH},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
