#include "common/metal_copy_launch.h"

#include <stdexcept>

#include "common/metal_copy_params.h"

namespace tiny_llm_ext {

MetalLaunch copy_launch(const std::vector<int>& shape, const std::vector<int64_t>& strides,
                        int item_size, int max_threads) {
    // Neighbouring dimensions that lie in memory like one become one; ones are left out.
    CopyParams params = {.size = 1, .dims = 0, .shape = {}, .strides = {}};
    for (size_t i = 0; i < shape.size(); i++) {
        params.size *= shape[i];
        if (shape[i] == 1) {
            continue;
        }
        const int last = params.dims - 1;
        if (last >= 0 && params.strides[last] == strides[i] * shape[i]) {
            params.shape[last] *= shape[i];
            params.strides[last] = strides[i];
            continue;
        }
        if (params.dims == COPY_MAX_DIMS) {
            throw std::invalid_argument("[copy] expected at most 8 dimensions, got " +
                                        std::to_string(shape.size()));
        }
        params.shape[params.dims] = shape[i];
        params.strides[params.dims++] = strides[i];
    }
    const int threads = threads_for(params.size, 256, max_threads);
    return {.kernel = "metal_copy_strided_bytes" + std::to_string(item_size),
            .groups = {.x = ceil_div(params.size, threads)},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
