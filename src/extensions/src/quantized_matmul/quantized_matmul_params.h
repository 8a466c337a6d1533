// What the kernels of quantized_matmul*.metal are told.
#pragma once

namespace tiny_llm_ext {

struct QuantizedMatmulParams {
    int M;  // rows of a
    int O;  // rows of b
    int I;  // numbers in a row of either
};

}  // namespace tiny_llm_ext
