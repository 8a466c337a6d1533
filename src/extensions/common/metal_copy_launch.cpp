#include "common/metal_copy_launch.h"

#include <limits>
#include <stdexcept>

#include "common/metal_copy_params.h"

namespace tiny_llm_ext {

namespace {

struct Dimension {
    int64_t size, stride;
};

// Merges adjacent dimensions that a single stride can describe, as long as the merged size fits the
// kernel's 32-bit indices. Drops dimensions of size 1.
std::vector<Dimension> merged(const std::vector<int>& shape, const std::vector<int64_t>& strides) {
    std::vector<Dimension> dimensions;
    for (size_t i = 0; i < shape.size(); i++) {
        if (shape[i] == 1) {
            continue;
        }
        const bool is_mergeable =
            !dimensions.empty() && dimensions.back().stride == strides[i] * shape[i] &&
            dimensions.back().size * shape[i] <= std::numeric_limits<int32_t>::max();
        if (is_mergeable) {
            dimensions.back() = {dimensions.back().size * shape[i], strides[i]};
        } else {
            dimensions.push_back({shape[i], strides[i]});
        }
    }
    return dimensions;
}

}  // namespace

MetalLaunch copy_launch(const std::vector<int>& shape, const std::vector<int64_t>& strides,
                        int item_size, int max_threads) {
    std::vector<Dimension> dimensions = merged(shape, strides);
    Dimension last = {1, 1};
    if (!dimensions.empty()) {
        last = dimensions.back();
        dimensions.pop_back();
    }
    if (dimensions.size() > COPY_MAX_DIMS) {
        throw std::invalid_argument("[copy] expected at most 9 dimensions, got " +
                                    std::to_string(shape.size()));
    }
    CopyParams params = {.rows = 1,
                         .columns = static_cast<unsigned int>(last.size),
                         .column_stride = last.stride,
                         .dims = static_cast<int>(dimensions.size()),
                         .shape = {},
                         .strides = {}};
    int64_t rows = 1;
    for (size_t i = 0; i < dimensions.size(); i++) {
        params.shape[i] = static_cast<unsigned int>(dimensions[i].size);
        params.strides[i] = dimensions[i].stride;
        rows *= dimensions[i].size;
    }
    if (rows > std::numeric_limits<int32_t>::max()) {
        throw std::invalid_argument("[copy] expected at most 2^31 - 1 rows, got " +
                                    std::to_string(rows));
    }
    params.rows = static_cast<unsigned int>(rows);
    const int width = threads_for(ceil_div(last.size, COPY_ELEMENTS_PER_THREAD), 256, max_threads);
    const int64_t height = std::max<int64_t>(1, std::min<int64_t>(rows, 256 / width));
    return {.kernel = "metal_copy_strided_bytes" + std::to_string(item_size),
            .groups = {.x = ceil_div(last.size, int64_t{width} * COPY_ELEMENTS_PER_THREAD),
                       .y = ceil_div(rows, height)},
            .threads = {.x = width, .y = height},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
