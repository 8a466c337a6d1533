#include "src/paged_cache_write/paged_cache_write_launch.h"

namespace tiny_llm_ext {

MetalLaunch paged_cache_write_launch(const PagedCacheWriteParams& params, int item_size,
                                     int max_threads) {
    const int64_t elements = static_cast<int64_t>(params.H) * params.D;
    const int threads = threads_for(elements, 256, max_threads);
    return {.kernel = "paged_cache_write_elements_bytes" + std::to_string(item_size),
            .groups = {.x = ceil_div(elements, threads), .y = params.tokens},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

MetalLaunch paged_cache_write_int8_launch(const PagedCacheWriteParams& params, Format format) {
    return {.kernel = kernel_name("paged_cache_write_int8", format),
            .groups = {.x = params.H, .y = params.tokens},
            .threads = {.x = SIMD_WIDTH},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
