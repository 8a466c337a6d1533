// rms_norm on the CPU: eval_cpu, which selects a kernel and distributes the rows over threads.
#include "common/checks.h"
#include "common/fused.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/rms_norm/rms_norm.h"
#include "src/rms_norm/rms_norm_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void rms_norm(const RmsNormJob& job, int64_t first, int64_t last);)

namespace {

RmsNormKernel rms_norm_simd_kernel([[maybe_unused]] InstructionSet set) {
    // [task 4.5.2 choose]
    return TINY_LLM_CHOOSE_SIMD(set, rms_norm, rms_norm_reference);
    // [/task 4.5.2 choose]
}

}  // namespace

void RmsNorm::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
    const bool adds = inputs.size() == 3;
    const auto& x = inputs.front();
    const auto& y = inputs[1];  // the weight if there is no addition
    auto& out = outputs.back();
    RmsNormJob job = {
        .M = x.shape(-1) == 0 ? 0 : static_cast<int64_t>(x.size()) / x.shape(-1),
        .D = x.shape(-1),
        .eps = eps_,
        .format = format_of(x.dtype()),
        .x = nullptr,
        .y = nullptr,
        .weight = rows_of(inputs.back(), stream()).data,
        .sum = nullptr,
        .out = nullptr,
        .x_stride = 0,
        .y_stride = 0,
    };
    const Rows x_rows = rows_of(x, stream());
    job.x = x_rows.data;
    job.x_stride = x_rows.stride;
    if (adds) {
        const Rows y_rows = rows_of(y, stream());
        job.y = y_rows.data;
        job.y_stride = y_rows.stride;
        job.sum = allocate_or_reuse(outputs[0], x);
        job.out = allocate_or_reuse(out, y);  // safe, as y's row is read before out's is written
    } else {
        job.out = allocate_or_reuse(out, x);
    }
    if (out.size() == 0) {
        return;
    }
    const auto kernel = fused_kernel<RmsNormKernel>(rms_norm_simd_kernel, rms_norm_reference);
    add_task(stream(), [job, kernel] {
        for_rows(job.M, job.D, [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
