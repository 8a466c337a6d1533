// Parameters of the kernels in swiglu.metal.
#pragma once

namespace tiny_llm_ext {

enum { SWIGLU_READS = 4 };  // consecutive elements per thread

struct SwigluParams {
    int I;
    long gate_stride, up_stride;  // row strides in elements
};

}  // namespace tiny_llm_ext
