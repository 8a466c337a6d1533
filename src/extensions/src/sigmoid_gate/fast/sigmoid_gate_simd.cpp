// Vectorized sigmoid_gate: the reference, LANES elements at a time.
#include "common/row_simd.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

void sigmoid_gate(const RowJob& job, int64_t first, int64_t last) {
    map_vectors(job, first, last, [](Floats x, Floats gate) { return x * sigmoid(gate); });
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
