// CPU kernels of argmax on raw pointers.
#pragma once

#include <stdint.h>

#include "common/half.h"

namespace tiny_llm_ext {

struct ArgmaxJob {
    int64_t M, V;  // number of rows; elements per row
    Format format;
    const void* x;  // M × V, rows `stride` elements apart
    int64_t stride;
    uint32_t* out;  // M
};

/// Largest element of a range of a row, and the lowest index at which it occurs.
struct ArgmaxResult {
    float value;
    int32_t index;

    /// Whether this result has the larger value or, if the values are equal, the lower index.
    bool beats(ArgmaxResult other) const {
        return value > other.value || (value == other.value && index < other.index);
    }
};

/// Reference kernel: largest of elements first … last − 1 of a row; {−∞, first} if all are −∞ or
/// NaN. argmax in fast/argmax_simd.cpp has the same interface.
ArgmaxResult argmax_reference(const ArgmaxJob& job, int64_t row, int64_t first, int64_t last);

}  // namespace tiny_llm_ext
