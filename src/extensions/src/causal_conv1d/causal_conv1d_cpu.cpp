// causal_conv1d on the CPU: kernel selection, parallel over sequences and blocks of channels.
#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/state_arguments.h"
#include "common/tasks.h"
#include "src/causal_conv1d/causal_conv1d.h"
#include "src/causal_conv1d/causal_conv1d_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void causal_conv1d(const CausalConv1dJob& job, int64_t sequence,
                                         int64_t first, int64_t last);)

void CausalConv1d::eval_cpu(const std::vector<mx::array>& node_inputs,
                            std::vector<mx::array>& outputs) {
    const auto& inputs = update_first(node_inputs, outputs, stream());
    const auto& states = outputs[0];
    const auto& weight = inputs[2];
    const Rows x = rows_of(inputs[1], stream());
    auto* const y = static_cast<float*>(allocate(outputs[1]));
    if (outputs[1].size() == 0) {
        return;
    }
    const CausalConv1dJob job = {
        .C = weight.shape(0),
        .K = weight.shape(1),
        .format = format_of(states.dtype()),
        .weight_format = format_of(weight.dtype()),
        .x = x.data,
        .weight = weight.data<char>(),
        .states = outputs[0].data<char>(),
        .y = y,
        .x_stride = x.stride,
        .weight_strides = {weight.strides(0), weight.strides(1)},
        .slots = state_slots_of(states.shape(0), inputs[3], inputs[4], inputs[5], stream()),
    };
    const auto kernel =
        TINY_LLM_CHOOSE_SIMD(instruction_set(), causal_conv1d, causal_conv1d_reference);
    add_task(stream(), [job, kernel] {
        const int64_t blocks = (job.C + CONV_CHANNELS - 1) / CONV_CHANNELS;
        const int64_t units = job.slots.B * blocks;
        const int64_t elements = job.slots.T * job.C / std::max<int64_t>(1, units);
        for_rows(units, elements, [&](int64_t first, int64_t last) {
            for (int64_t unit = first; unit < last; unit++) {
                const int64_t c = unit % blocks * CONV_CHANNELS;
                kernel(job, unit / blocks, c, std::min(job.C, c + CONV_CHANNELS));
            }
        });
    });
}

}  // namespace tiny_llm_ext
