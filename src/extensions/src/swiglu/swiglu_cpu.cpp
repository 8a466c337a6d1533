// swiglu on the CPU: eval_cpu, which selects a kernel and distributes the rows over threads.
#include "common/checks.h"
#include "common/fused.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/swiglu/swiglu.h"
#include "src/swiglu/swiglu_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void swiglu(const SwigluJob& job, int64_t first, int64_t last);)

namespace {

SwigluKernel swiglu_simd_kernel([[maybe_unused]] InstructionSet set) {
    // [task 4.5.4 choose]
    return TINY_LLM_CHOOSE_SIMD(set, swiglu, swiglu_reference);
    // [/task 4.5.4 choose]
}

}  // namespace

void Swiglu::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const Rows gate = rows_of(inputs[0], stream());
    const Rows up = rows_of(inputs[1], stream());
    void* const memory = allocate_or_reuse(out, inputs[0]);
    if (out.size() == 0) {
        return;
    }
    const SwigluJob job = {
        .M = static_cast<int64_t>(out.size()) / out.shape(-1),
        .I = out.shape(-1),
        .format = format_of(out.dtype()),
        .gate = gate.data,
        .up = up.data,
        .out = memory,
        .gate_stride = gate.stride,
        .up_stride = up.stride,
    };
    const auto kernel = fused_kernel<SwigluKernel>(swiglu_simd_kernel, swiglu_reference);
    add_task(stream(), [job, kernel] {
        for_rows(job.M, job.I, [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
