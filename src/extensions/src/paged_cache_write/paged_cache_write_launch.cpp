#include "src/paged_cache_write/paged_cache_write_launch.h"

namespace tiny_llm_ext {

MetalLaunch paged_cache_write_launch(const PagedCacheWriteParams& params, int item_size,
                                     int max_threads) {
    return row_launch("paged_cache_write_elements_bytes" + std::to_string(item_size), params.tokens,
                      static_cast<int64_t>(params.H) * params.D, 256, max_threads, params);
}

MetalLaunch paged_cache_write_int8_launch(const PagedCacheWriteParams& params, Format format) {
    return {.kernel = kernel_name("paged_cache_write_int8", format),
            .groups = {.x = params.H, .y = params.tokens},
            .threads = {.x = SIMD_WIDTH},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
