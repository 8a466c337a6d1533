// swiglu on the CPU: the readable reference, and who runs which kernel.
#include <cmath>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/swiglu/swiglu.h"
#include "src/swiglu/swiglu_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void swiglu(const SwigluJob& job, int64_t first, int64_t last);)

namespace {

// x · sigmoid(x), rounded after each step. e^−|x| never overflows; sigmoid(−x) = 1 − sigmoid(x).
float silu(float x, Format format) {
    const float power = round_to(std::exp(-std::abs(x)), format);
    float sigmoid = round_to(1 / round_to(1 + power, format), format);
    sigmoid = x < 0 ? round_to(1 - sigmoid, format) : sigmoid;
    return round_to(x * sigmoid, format);
}

}  // namespace

void swiglu_portable(const SwigluJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        for (int64_t i = 0; i < job.I; i++) {
            const float gate = load_element(job.gate, m * job.gate_stride + i, job.format);
            const float up = load_element(job.up, m * job.up_stride + i, job.format);
            store_element(job.out, m * job.I + i, job.format, silu(gate, job.format) * up);
        }
    }
}

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
    const auto kernel = TINY_LLM_CHOOSE_SIMD(instruction_set(), swiglu, swiglu_portable);
    add_task(stream(), [job, kernel] {
        for_rows(job.M, job.I, [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
