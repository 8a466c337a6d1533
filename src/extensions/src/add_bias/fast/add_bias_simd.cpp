// Vectorized add_bias: the reference, LANES elements at a time.
#include "common/row_simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

void add_bias(const RowJob& job, int64_t first, int64_t last) {
    const auto add = [](Floats x, Floats bias) { return x + bias; };
    if (job.inputs[2].data == nullptr) {
        return map_vectors(job, first, last, add);
    }
    for (int64_t m = first; m < last; m++) {
        map_vectors(with_selected_row(job, m), m, m + 1, add);
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
