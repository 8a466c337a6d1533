// Parameters of the kernels in matmul*.metal.
#pragma once

namespace tiny_llm_ext {

struct MatmulParams {
    int M;         // rows of a
    int O;         // rows of b
    int I;         // inner dimension
    int a_stride;  // row stride of a in elements
    int b_stride;  // row stride of b in elements
};

struct SplitKSumParams {
    int parts;
    long size;  // M · O: number of outputs, each of which has a partial sum per part
};

}  // namespace tiny_llm_ext
