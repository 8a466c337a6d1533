// sigmoid_gate: scalar reference kernel.
#include "common/sigmoid.h"
#include "src/sigmoid_gate/sigmoid_gate_kernels.h"

namespace tiny_llm_ext {

void sigmoid_gate_reference(const SigmoidGateJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        for (int64_t d = 0; d < job.D; d++) {
            const float x = load_element(job.x, m * job.x_stride + d, job.format);
            const int64_t at = m * job.gate_stride + d * job.gate_step;
            const float gate = load_element(job.gate, at, job.format);
            store_element(job.out, m * job.D + d, job.format, x * sigmoid(gate));
        }
    }
}

}  // namespace tiny_llm_ext
