// Vectorized add_bias: the reference, LANES elements at a time.
#include "common/row_simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

void add_bias(const RowJob& job, int64_t first, int64_t last) {
    map_vectors(job, first, last, [](Floats x, Floats bias) { return x + bias; });
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
