// Parameters of the kernels in quantized_matmul*.metal.
#pragma once

namespace tiny_llm_ext {

struct QuantizedMatmulParams {
    int M;  // rows of a
    int O;  // rows of b
    int I;  // inner dimension
};

}  // namespace tiny_llm_ext
