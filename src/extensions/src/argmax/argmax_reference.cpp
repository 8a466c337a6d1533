// argmax: scalar reference kernel.
#include <cmath>

#include "src/argmax/argmax_kernels.h"

namespace tiny_llm_ext {

ArgmaxResult argmax_reference(const ArgmaxJob& job, int64_t row, int64_t first, int64_t last) {
    ArgmaxResult largest = {-INFINITY, static_cast<int32_t>(first)};
    for (int64_t i = first; i < last; i++) {
        const float value = load_element(job.x, row * job.stride + i, job.format);
        if (value > largest.value) {
            largest = {value, static_cast<int32_t>(i)};
        }
    }
    return largest;
}

}  // namespace tiny_llm_ext
