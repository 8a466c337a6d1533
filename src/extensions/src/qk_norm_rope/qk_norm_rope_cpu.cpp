// qk_norm_rope on the CPU: eval_cpu, which selects a kernel and distributes the rows over threads.
#include "common/checks.h"
#include "common/fused.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/qk_norm_rope/qk_norm_rope.h"
#include "src/qk_norm_rope/qk_norm_rope_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void qk_norm_rope(const QkNormRopeJob& job, int64_t first, int64_t last);)

namespace {

QkNormRopeKernel qk_norm_rope_simd_kernel([[maybe_unused]] InstructionSet set) {
    // [task 4.5.3 choose]
    return TINY_LLM_CHOOSE_SIMD(set, qk_norm_rope, qk_norm_rope_reference);
    // [/task 4.5.3 choose]
}

}  // namespace

void QkNormRope::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    void* const memory = allocate(out);
    if (out.size() == 0) {
        return;
    }
    const bool heads_are_rows = inputs[0].strides(3) == 1;
    const mx::array x = heads_are_rows ? inputs[0] : row_contiguous(inputs[0], stream());
    const mx::array cos = row_contiguous(inputs[2], stream());
    const mx::array sin = row_contiguous(inputs[3], stream());
    const int64_t L = x.shape(1), W = cos.shape(2);
    const QkNormRopeJob job = {
        .B = x.shape(0),
        .L = L,
        .H = x.shape(2),
        .D = x.shape(3),
        .W = W,
        .eps = eps_,
        .format = format_of(x.dtype()),
        .x = x.data<char>(),
        .weight = normalizes_ ? row_contiguous(inputs[1], stream()).data<char>() : nullptr,
        .cos = cos.data<float>(),
        .sin = sin.data<float>(),
        .out = memory,
        .x_strides = {x.strides(0), x.strides(1), x.strides(2)},
        .angle_stride = cos.shape(0) == 1 ? 0 : L * W,
    };
    const auto kernel =
        fused_kernel<QkNormRopeKernel>(qk_norm_rope_simd_kernel, qk_norm_rope_reference);
    add_task(stream(), [job, kernel] {
        for_rows(job.B * job.L, job.H * job.D,
                 [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
