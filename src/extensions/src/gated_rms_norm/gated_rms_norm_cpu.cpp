// gated_rms_norm on the CPU: eval_cpu, which selects a kernel and distributes the rows over
// threads.
#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/gated_rms_norm/gated_rms_norm.h"
#include "src/gated_rms_norm/gated_rms_norm_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void gated_rms_norm(const GatedRmsNormJob& job, int64_t first, int64_t last);)

void GatedRmsNorm::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const Rows o = rows_of(inputs[0], stream());
    const Rows z = rows_of(inputs[1], stream());
    void* const memory = allocate_or_reuse(out, inputs[1]);
    if (out.size() == 0) {
        return;
    }
    const GatedRmsNormJob job = {
        .M = static_cast<int64_t>(out.size()) / out.shape(-1),
        .D = out.shape(-1),
        .eps = eps_,
        .format = format_of(out.dtype()),
        .weight_format = format_of(inputs[2].dtype()),
        .o = static_cast<const float*>(o.data),
        .z = z.data,
        .weight = rows_of(inputs[2], stream()).data,
        .out = memory,
        .o_stride = o.stride,
        .z_stride = z.stride,
    };
    const auto kernel =
        TINY_LLM_CHOOSE_SIMD(instruction_set(), gated_rms_norm, gated_rms_norm_reference);
    add_task(stream(), [job, kernel] {
        for_rows(job.M, job.D, [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
