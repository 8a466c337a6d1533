// sigmoid_gate on the CPU: eval_cpu, which selects a kernel and distributes the rows over threads.
#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/sigmoid_gate/sigmoid_gate.h"
#include "src/sigmoid_gate/sigmoid_gate_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void sigmoid_gate(const SigmoidGateJob& job, int64_t first, int64_t last);)

void SigmoidGate::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const Rows x = rows_of(inputs[0], stream());
    const Rows gate = rows_of(inputs[1], stream());
    void* const memory = allocate_or_reuse(out, inputs[0]);
    if (out.size() == 0) {
        return;
    }
    const SigmoidGateJob job = {
        .M = static_cast<int64_t>(out.size()) / out.shape(-1),
        .D = out.shape(-1),
        .format = format_of(out.dtype()),
        .x = x.data,
        .gate = gate.data,
        .out = memory,
        .x_stride = x.stride,
        .gate_stride = gate.stride,
        .gate_step = inputs[1].shape(-1) == 1 ? 0 : 1,
    };
    const auto kernel =
        TINY_LLM_CHOOSE_SIMD(instruction_set(), sigmoid_gate, sigmoid_gate_reference);
    add_task(stream(), [job, kernel] {
        for_rows(job.M, job.D, [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
