// swiglu: scalar reference kernel.
#include <cmath>

#include "src/swiglu/swiglu_kernels.h"

namespace tiny_llm_ext {

namespace {

// x · sigmoid(x), rounded after each step. With z = e^−|x|, which never overflows, sigmoid(x) is
// 1/(1 + z) for x ≥ 0 and z/(1 + z) for x < 0; 1 − 1/(1 + z) would lose precision.
float silu(float x, Format format) {
    const float z = round_to(std::exp(-std::abs(x)), format);
    const float sigmoid = round_to((x < 0 ? z : 1) / round_to(1 + z, format), format);
    return round_to(x * sigmoid, format);
}

}  // namespace

void swiglu_reference(const SwigluJob& job, int64_t first, int64_t last) {
    for (int64_t m = first; m < last; m++) {
        for (int64_t i = 0; i < job.I; i++) {
            const float gate = load_element(job.gate, m * job.gate_stride + i, job.format);
            const float up = load_element(job.up, m * job.up_stride + i, job.format);
            store_element(job.out, m * job.I + i, job.format, silu(gate, job.format) * up);
        }
    }
}

}  // namespace tiny_llm_ext
