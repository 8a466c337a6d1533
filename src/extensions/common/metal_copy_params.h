// The parameters of the kernels in common/metal_copy.metal.
#pragma once

namespace tiny_llm_ext {

// Metal wants variables outside of functions in the constant address space; an enum has none.
enum { COPY_MAX_DIMS = 8 };

struct CopyParams {
    long size;  // elements
    int dims;   // of the source, the last one the fastest
    long shape[COPY_MAX_DIMS];
    long strides[COPY_MAX_DIMS];  // in elements
};

}  // namespace tiny_llm_ext
