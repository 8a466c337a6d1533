// Vectorized weighted_sum: the reference, LANES elements at a time, with the same bits.
#include "common/row_simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

void weighted_sum(const RowJob& job, int64_t first, int64_t last) {
    const int64_t K = job.inputs[1].width, stride = job.inputs[0].stride;
    for (int64_t n = first; n < last; n++) {
        const auto* weights = static_cast<const float*>(input_row(job, 1, n));
        const void* x = input_row(job, 0, n * K);
        for_vectors(job.D, [&](int64_t e, int count) {
            Floats sum = {};
            if (job.inputs[2].data != nullptr) {
                sum = load_up_to(input_row(job, 2, n), e, job.format, count);
            }
            for (int64_t k = 0; k < K; k++) {
                sum = sum + weights[k] * load_up_to(x, k * stride + e, job.format, count);
            }
            store(output_row(job, 0, n), e, job.format, sum, count);
        });
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
