// Vectorized gated_rms_norm: the reference, LANES elements at a time.
#include "common/simd.h"
#include "src/gated_rms_norm/gated_rms_norm_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

void gated_rms_norm(const GatedRmsNormJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        const float* o = job.o + m * job.o_stride;
        const float mean = sum_of_squares(o, job.D) / static_cast<float>(job.D);
        const Floats factor = splat(1 / __builtin_sqrtf(mean + job.eps));
        for_vectors(job.D, [&](int64_t d, int count) {
            const Floats x = load_up_to(o, d, Format::float32, count) * factor;
            const Floats weight = load_up_to(job.weight, d, job.weight_format, count);
            const Floats z = load_up_to(job.z, m * job.z_stride + d, job.format, count);
            store(job.out, m * job.D + d, job.format, x * weight * silu(z), count);
        });
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
