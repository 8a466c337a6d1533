// swiglu: scalar reference kernel.
#include <cmath>

#include "common/row_job.h"
#include "common/sigmoid.h"

namespace tiny_llm_ext {

namespace {

// x · sigmoid(x), rounded to the format after each step. With z = e^−|x|, which never overflows,
// sigmoid(x) is 1/(1 + z) for x ≥ 0 and z/(1 + z) for x < 0; 1 − 1/(1 + z) would lose precision.
float rounded_silu(float x, Format format) {
    const float z = round_to(std::exp(-std::abs(x)), format);
    const float sigmoid = round_to((x < 0 ? z : 1) / round_to(1 + z, format), format);
    return round_to(x * sigmoid, format);
}

// gpt-oss's function. A NaN is not clamped.
float clamped_swiglu(float gate, float up) {
    gate = gate > SWIGLU_LIMIT ? SWIGLU_LIMIT : gate;
    up = up > SWIGLU_LIMIT ? SWIGLU_LIMIT : up < -SWIGLU_LIMIT ? -SWIGLU_LIMIT : up;
    return gate * sigmoid(SWIGLU_ALPHA * gate) * (up + 1);
}

}  // namespace

void swiglu_reference(const RowJob& job, int64_t first, int64_t last) {
    if (job.options.activation == Activation::swigluoai) {
        return map_elements(job, first, last, clamped_swiglu);
    }
    const bool is_gelu = job.options.activation == Activation::gelu_tanh;
    map_elements(job, first, last, [&](float gate, float up) {
        const float act =
            is_gelu ? round_to(gelu_tanh(gate), job.format) : rounded_silu(gate, job.format);
        return act * up;
    });
}

}  // namespace tiny_llm_ext
