// rms_norm: scalar reference kernel.
#include <cmath>

#include "src/rms_norm/rms_norm_kernels.h"

namespace tiny_llm_ext {

void rms_norm_reference(const RmsNormJob& job, int64_t first, int64_t last) {
    const Format format = job.format;
    for (int64_t m = first; m < last; m++) {
        const void* row = job.x;
        int64_t start = m * job.x_stride;
        float squares = 0;
        for (int64_t i = 0; i < job.D; i++) {
            float x = load_element(job.x, m * job.x_stride + i, format);
            if (job.y != nullptr) {
                x = round_to(x + load_element(job.y, m * job.y_stride + i, format), format);
                store_element(job.sum, m * job.D + i, format, x);
            }
            squares += x * x;
        }
        if (job.y != nullptr) {
            row = job.sum;
            start = m * job.D;
        }
        const float factor = 1 / std::sqrt(squares / static_cast<float>(job.D) + job.eps);
        for (int64_t i = 0; i < job.D; i++) {
            const float x = round_to(load_element(row, start + i, format) * factor, format);
            store_element(job.out, m * job.D + i, format, x * load_element(job.weight, i, format));
        }
    }
}

}  // namespace tiny_llm_ext
