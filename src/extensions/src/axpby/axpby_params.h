// The parameters of the kernels in axpby.metal.
#pragma once

namespace tiny_llm_ext {

struct AxpbyParams {
    float alpha;
    float beta;
    int size;  // elements
};

}  // namespace tiny_llm_ext
