// The parameters of the kernels in matmul*.metal.
#pragma once

namespace tiny_llm_ext {

struct MatmulParams {
    int M;         // rows of a
    int O;         // rows of b
    int I;         // numbers in a row of either
    int a_stride;  // numbers from one row of a to the next
    int b_stride;  // the same for b
};

struct SumPartsParams {
    int parts;
    long size;  // numbers in a part
};

}  // namespace tiny_llm_ext
