// Vectorized gated_rms_norm: the reference, LANES elements at a time.
#include "common/row_simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

void gated_rms_norm(const RowJob& job, int64_t first, int64_t last) {
    const RowArray& weights = job.inputs[2];
    for (int64_t m = first; m < last; m++) {
        const auto* o = static_cast<const float*>(input_row(job, 0, m));
        const float mean = sum_of_squares(o, job.D) / static_cast<float>(job.D);
        const Floats factor = splat(1 / __builtin_sqrtf(mean + job.options.eps));
        for_vectors(job.D, [&](int64_t d, int count) {
            const Floats x = load_up_to(o, d, Format::float32, count) * factor;
            const Floats weight = load_up_to(weights.data, d, weights.format, count);
            const Floats z = load_up_to(input_row(job, 1, m), d, job.format, count);
            store(output_row(job, 0, m), d, job.format, x * weight * silu(z), count);
        });
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
