// gated_rms_norm: scalar reference kernel.
#include <cmath>

#include "common/sigmoid.h"
#include "src/gated_rms_norm/gated_rms_norm_kernels.h"

namespace tiny_llm_ext {

void gated_rms_norm_reference(const GatedRmsNormJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        const float* o = job.o + m * job.o_stride;
        float squares = 0;
        for (int64_t d = 0; d < job.D; d++) {
            squares += o[d] * o[d];
        }
        const float factor = 1 / std::sqrt(squares / static_cast<float>(job.D) + job.eps);
        for (int64_t d = 0; d < job.D; d++) {
            const float z = load_element(job.z, m * job.z_stride + d, job.format);
            const float weight = load_element(job.weight, d, job.weight_format);
            store_element(job.out, m * job.D + d, job.format, o[d] * factor * weight * silu(z));
        }
    }
}

}  // namespace tiny_llm_ext
