#include "src/axpby/axpby_launch.h"

#include <limits>
#include <stdexcept>

#include "src/axpby/axpby_params.h"

namespace tiny_llm_ext {

MetalLaunch axpby_launch(int64_t size, float alpha, float beta, Format format, int max_threads) {
    // Thread indices must fit an int, including indices of the last threadgroup beyond `size`.
    constexpr int64_t MAX_SIZE = std::numeric_limits<int>::max() - MAX_THREADS;
    if (size > MAX_SIZE) {
        throw std::invalid_argument("[axpby] expected at most " + std::to_string(MAX_SIZE) +
                                    " elements on the GPU, got " + std::to_string(size));
    }
    const int threads = threads_for(size, 256, max_threads);
    const AxpbyParams params = {.alpha = alpha, .beta = beta, .size = static_cast<int>(size)};
    return {.kernel = kernel_name("axpby_elements", format),
            .groups = {.x = ceil_div(size, threads)},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
