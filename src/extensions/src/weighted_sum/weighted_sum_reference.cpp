// weighted_sum: scalar reference kernel.
#include "common/row_job.h"

namespace tiny_llm_ext {

void weighted_sum_reference(const RowJob& job, int64_t first, int64_t last) {
    const int64_t K = job.inputs[1].width;
    for (int64_t n = first; n < last; n++) {
        const auto* weights = static_cast<const float*>(input_row(job, 1, n));
        for (int64_t e = 0; e < job.D; e++) {
            float sum = job.inputs[2].data ? load_element(input_row(job, 2, n), e, job.format) : 0;
            for (int64_t k = 0; k < K; k++) {
                const float x = load_element(input_row(job, 0, n * K + k), e, job.format);
                const float product = weights[k] * x;
                sum += product;
            }
            store_element(output_row(job, 0, n), e, job.format, sum);
        }
    }
}

}  // namespace tiny_llm_ext
