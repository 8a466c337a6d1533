// Parameters of the kernels in rms_norm.metal.
#pragma once

namespace tiny_llm_ext {

/// READS: consecutive elements per load. REGISTER_LOADS: loads per thread that stay in registers.
/// Elements beyond threads · READS · REGISTER_LOADS are read from memory twice.
enum { RMS_NORM_READS = 4, RMS_NORM_REGISTER_LOADS = 2 };

struct RmsNormParams {
    int D;
    float eps;
    long x_stride, y_stride;  // row strides in elements
};

}  // namespace tiny_llm_ext
