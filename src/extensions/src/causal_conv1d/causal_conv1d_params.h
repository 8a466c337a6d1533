// Parameters of the kernels in causal_conv1d.metal.
#pragma once

namespace tiny_llm_ext {

enum { CAUSAL_CONV1D_WIDTH = 8 };  // maximum K

struct CausalConv1dParams {
    int T, B, S;             // tokens, sequences, slots
    int C, K;                // channels, convolution width
    long x_stride;           // row stride in elements
    long weight_strides[2];  // of C and K, in elements
};

}  // namespace tiny_llm_ext
