// Parameters of the kernels in gated_rms_norm.metal.
#pragma once

namespace tiny_llm_ext {

struct GatedRmsNormParams {
    int D;
    float eps;
    long M;
    long o_stride, z_stride;  // row strides in elements
};

}  // namespace tiny_llm_ext
