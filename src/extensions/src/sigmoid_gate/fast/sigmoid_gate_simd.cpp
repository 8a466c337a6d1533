// Vectorized sigmoid_gate: the reference, LANES elements at a time.
#include "common/simd.h"
#include "src/sigmoid_gate/sigmoid_gate_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

void sigmoid_gate(const SigmoidGateJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        for_vectors(job.D, [&](int64_t d, int count) {
            const Floats x = load_up_to(job.x, m * job.x_stride + d, job.format, count);
            const int64_t at = m * job.gate_stride;
            const Floats gate = job.gate_step == 0
                                    ? splat(load_element(job.gate, at, job.format))
                                    : load_up_to(job.gate, at + d, job.format, count);
            store(job.out, m * job.D + d, job.format, x * sigmoid(gate), count);
        });
    }
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
