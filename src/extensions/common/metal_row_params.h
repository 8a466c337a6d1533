// Parameters of the Metal kernels of row operations (common/row_operation.h).
#pragma once

namespace tiny_llm_ext {

enum { ROW_READS = 4 };  // consecutive elements per thread and load

struct RowParams {
    int D;  // elements per row of the output
    float eps, scale;
    long M;           // rows
    long strides[3];  // row strides of the inputs in elements; 0: one row for all
    int widths[3];    // elements per row of the inputs
};

}  // namespace tiny_llm_ext
