#include "src/cache_write/cache_write_launch.h"

namespace tiny_llm_ext {

MetalLaunch cache_write_launch(int B, const CacheWriteParams& params, int item_size,
                               int max_threads) {
    return row_launch("cache_write_elements_bytes" + std::to_string(item_size),
                      static_cast<int64_t>(B) * params.H, static_cast<int64_t>(params.L) * params.D,
                      256, max_threads, params);
}

}  // namespace tiny_llm_ext
