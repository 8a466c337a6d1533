// sigmoid_gate: scalar reference kernel.
#include "common/row_job.h"
#include "common/sigmoid.h"

namespace tiny_llm_ext {

void sigmoid_gate_reference(const RowJob& job, int64_t first, int64_t last) {
    map_elements(job, first, last, [](float x, float gate) { return x * sigmoid(gate); });
}

}  // namespace tiny_llm_ext
