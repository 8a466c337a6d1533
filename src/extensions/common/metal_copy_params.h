// Parameters of the kernels in common/metal_copy.metal.
#pragma once

namespace tiny_llm_ext {

// An enum, because Metal requires the constant address space for variables at namespace scope.
enum {
    COPY_MAX_DIMS = 8,
    COPY_ELEMENTS_PER_THREAD = 4,
};

struct CopyParams {
    unsigned int rows, columns;  // columns: size of the last dimension
    long column_stride;          // stride within a row, in elements
    int dims;                    // number of dimensions that index rows; the last varies fastest
    unsigned int shape[COPY_MAX_DIMS];
    long strides[COPY_MAX_DIMS];
};

}  // namespace tiny_llm_ext
