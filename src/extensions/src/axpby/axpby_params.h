// Parameters of the kernels in axpby.metal.
#pragma once

namespace tiny_llm_ext {

struct AxpbyParams {
    float alpha;
    float beta;
    int size;  // number of elements
};

}  // namespace tiny_llm_ext
