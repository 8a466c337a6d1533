#include "src/cache_write/cache_write_launch.h"

namespace tiny_llm_ext {

MetalLaunch cache_write_launch(int B, const CacheWriteParams& params, int item_size,
                               int max_threads) {
    const int64_t elements = static_cast<int64_t>(params.L) * params.D;
    const int threads = threads_for(elements, 256, max_threads);
    return {.kernel = "cache_write_elements_bytes" + std::to_string(item_size),
            .groups = {.x = ceil_div(elements, threads), .y = static_cast<int64_t>(B) * params.H},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
