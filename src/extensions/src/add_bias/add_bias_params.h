// The parameters of the kernels in add_bias.metal.
#pragma once

namespace tiny_llm_ext {

enum { ADD_BIAS_READS = 4 };  // consecutive elements per thread

struct AddBiasParams {
    int O;
    long x_stride;  // from one row to the next, in elements
};

}  // namespace tiny_llm_ext
