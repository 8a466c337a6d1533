// Vectorized scaled_sum: the reference, LANES elements at a time.
#include "common/row_simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

void scaled_sum(const RowJob& job, int64_t first, int64_t last) {
    map_vectors(job, first, last, [&](Floats x, Floats y) {
        return round_to(x + y, job.format) * splat(job.options.scale);
    });
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
