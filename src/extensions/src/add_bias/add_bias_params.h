// Parameters of the kernels in add_bias.metal.
#pragma once

namespace tiny_llm_ext {

enum { ADD_BIAS_READS = 4 };  // consecutive elements per thread

struct AddBiasParams {
    int O;
    long x_stride;  // row stride in elements
};

}  // namespace tiny_llm_ext
