// The result of argmax's CPU kernels.
#pragma once

#include "common/row_job.h"

namespace tiny_llm_ext {

/// Largest element of a part of a row, and the lowest index at which it occurs: {−∞, first} if all
/// are −∞ or NaN. A kernel computes one part, elements first … last − 1 counted over all rows, and
/// writes its result to outputs[0].
struct ArgmaxResult {
    float value;
    int32_t index;
};

namespace {  // internal linkage: the linker must not merge copies from different files

/// Whether `a` has the larger value or, if the values are equal, the lower index.
[[maybe_unused]] inline bool beats(ArgmaxResult a, ArgmaxResult b) {
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

}  // namespace

}  // namespace tiny_llm_ext
