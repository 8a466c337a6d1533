// The parameters of the kernels in common/metal_copy.metal.
#pragma once

namespace tiny_llm_ext {

// Metal wants variables outside of functions in the constant address space; an enum has none.
enum {
    COPY_MAX_DIMS = 8,
    COPY_EACH = 4,  // elements that a thread copies
};

struct CopyParams {
    unsigned int rows, columns;  // the last dimension is a row
    long column_stride;          // from one element of a row to the next; all in elements
    int dims;                    // of the rows, the last one the fastest
    unsigned int shape[COPY_MAX_DIMS];
    long strides[COPY_MAX_DIMS];
};

}  // namespace tiny_llm_ext
