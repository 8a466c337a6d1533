// argmax: scalar reference kernel.
#include <cmath>

#include "src/argmax/argmax_kernels.h"

namespace tiny_llm_ext {

void argmax_reference(const RowJob& job, int64_t first, int64_t last) {
    const void* row = input_row(job, 0, first / job.D);
    const int64_t begin = first % job.D, end = begin + last - first;
    ArgmaxResult largest = {-INFINITY, static_cast<int32_t>(begin)};
    for (int64_t i = begin; i < end; i++) {
        const float value = load_element(row, i, job.inputs[0].format);
        if (value > largest.value) {
            largest = {value, static_cast<int32_t>(i)};
        }
    }
    *static_cast<ArgmaxResult*>(job.outputs[0].data) = largest;
}

}  // namespace tiny_llm_ext
