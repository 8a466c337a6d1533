// gated_delta_rule on the CPU: kernel selection, parallel over sequences, heads and columns.
#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/state_arguments.h"
#include "common/tasks.h"
#include "src/gated_delta_rule/gated_delta_rule.h"
#include "src/gated_delta_rule/gated_delta_rule_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(extern const GatedDeltaRuleKernel gated_delta_rule;)

namespace {

void run(const GatedDeltaRuleJob& job, const GatedDeltaRuleKernel& kernel) {
    for_rows(job.slots.T, job.H_v * (2 * job.D_k + 64),
             [&](int64_t first, int64_t last) { kernel.factors(job, first, last); });
    const int64_t tiles = (job.D_v + DELTA_COLUMNS - 1) / DELTA_COLUMNS;
    const int64_t units = job.slots.B * job.H_v * tiles;
    const int64_t elements = job.slots.T * job.H_v * job.D_k * job.D_v / units;
    for_rows(units, elements, [&](int64_t first, int64_t last) {
        for (int64_t unit = first; unit < last; unit++) {
            const int64_t column = unit % tiles * DELTA_COLUMNS, head = unit / tiles;
            kernel.recurrence(job, head / job.H_v, head % job.H_v, column,
                              std::min(job.D_v, column + DELTA_COLUMNS));
        }
    });
}

}  // namespace

void GatedDeltaRule::eval_cpu(const std::vector<mx::array>& node_inputs,
                              std::vector<mx::array>& outputs) {
    const auto& inputs = update_first(node_inputs, outputs, stream());
    const auto& states = outputs[0];
    const Rows qkv = rows_of(inputs[1], stream());
    const Rows a = rows_of(inputs[2], stream());
    const Rows b = rows_of(inputs[3], stream());
    auto* const o = static_cast<float*>(allocate(outputs[1]));
    const StateSlots slots =
        state_slots_of(states.shape(0), inputs[6], inputs[7], inputs[8], stream());
    if (outputs[1].size() == 0 || slots.B == 0) {
        return;
    }
    const int H_v = states.shape(1);
    mx::array factors({inputs[1].shape(0), H_v, 4}, mx::float32, nullptr, {});
    static_assert(sizeof(DeltaFactors) == 4 * sizeof(float));
    const GatedDeltaRuleJob job = {
        .H_k = num_k_heads_,
        .H_v = H_v,
        .D_k = states.shape(2),
        .D_v = states.shape(3),
        .format = format_of(inputs[2].dtype()),
        .qkv = static_cast<const float*>(qkv.data),
        .a = a.data,
        .b = b.data,
        .A_log = row_contiguous(inputs[4], stream()).data<float>(),
        .dt_bias = row_contiguous(inputs[5], stream()).data<float>(),
        .states = outputs[0].data<float>(),
        .o = o,
        .factors = static_cast<DeltaFactors*>(allocate(factors)),
        .qkv_stride = qkv.stride,
        .a_stride = a.stride,
        .b_stride = b.stride,
        .slots = slots,
    };
    add_temporary(stream(), factors);
    const GatedDeltaRuleKernel kernel =
        TINY_LLM_CHOOSE_SIMD(instruction_set(), gated_delta_rule, gated_delta_rule_reference);
    add_task(stream(), [job, kernel] { run(job, kernel); });
}

}  // namespace tiny_llm_ext
