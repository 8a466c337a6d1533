// gated_rms_norm: scalar reference kernel.
#include <cmath>

#include "common/row_job.h"
#include "common/sigmoid.h"

namespace tiny_llm_ext {

void gated_rms_norm_reference(const RowJob& job, int64_t first, int64_t last) {
    const RowArray& weights = job.inputs[2];
    for (int64_t m = first; m < last; m++) {
        const auto* o = static_cast<const float*>(input_row(job, 0, m));
        float squares = 0;
        for (int64_t d = 0; d < job.D; d++) {
            squares += o[d] * o[d];
        }
        const float mean = squares / static_cast<float>(job.D);
        const float factor = 1 / std::sqrt(mean + job.options.eps);
        for (int64_t d = 0; d < job.D; d++) {
            const float z = load_element(input_row(job, 1, m), d, job.format);
            const float weight = load_element(weights.data, d, weights.format);
            store_element(output_row(job, 0, m), d, job.format, o[d] * factor * weight * silu(z));
        }
    }
}

}  // namespace tiny_llm_ext
