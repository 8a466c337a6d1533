// add_bias on the CPU: eval_cpu, which selects a kernel and distributes the rows over threads.
#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/add_bias/add_bias.h"
#include "src/add_bias/add_bias_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void add_bias(const AddBiasJob& job, int64_t first, int64_t last);)

void AddBias::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const Rows x = rows_of(inputs[0], stream());
    void* const memory = allocate_or_reuse(out, inputs[0]);
    if (out.size() == 0) {
        return;
    }
    const AddBiasJob job = {
        .M = static_cast<int64_t>(out.size()) / out.shape(-1),
        .O = out.shape(-1),
        .format = format_of(out.dtype()),
        .x = x.data,
        .bias = row_contiguous(inputs[1], stream()).data<char>(),
        .out = memory,
        .x_stride = x.stride,
    };
    const auto kernel = TINY_LLM_CHOOSE_SIMD(instruction_set(), add_bias, add_bias_reference);
    add_task(stream(), [job, kernel] {
        for_rows(job.M, job.O, [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
