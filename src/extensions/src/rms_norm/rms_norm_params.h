// The parameters of the kernels in rms_norm.metal.
#pragma once

namespace tiny_llm_ext {

/// Neighbours that a thread takes at once, and how often it takes them into registers. A row of
/// more than threads · READS · KEPT elements is read again for what is beyond.
enum { RMS_NORM_READS = 4, RMS_NORM_KEPT = 2 };

struct RmsNormParams {
    int D;
    float eps;
    long x_stride, y_stride;  // from one row to the next, in elements
};

}  // namespace tiny_llm_ext
