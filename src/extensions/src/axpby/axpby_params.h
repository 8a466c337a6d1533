// What the kernels of axpby.metal are told.
#pragma once

namespace tiny_llm_ext {

struct AxpbyParams {
    float alpha;
    float beta;
    int size;  // elements
};

}  // namespace tiny_llm_ext
