// Copy of a strided array to row-major order.
//
// The array is treated as rows × columns: the last dimension is a row, all others index the rows. A
// thread copies COPY_ELEMENTS_PER_THREAD elements of a row, one threadgroup width apart, so that
// adjacent lanes read adjacent elements if the row is contiguous. A thread decomposes its row index
// once, with 32-bit divisions; a contiguous array is a single row.
#include <metal_stdlib>

#include "common/metal_copy_params.h"

using namespace metal;
using namespace tiny_llm_ext;

template <typename T>
[[kernel]] void copy_strided(device const T* source [[buffer(0)]], device T* copy [[buffer(1)]],
                             constant const CopyParams& params [[buffer(2)]],
                             uint3 group [[threadgroup_position_in_grid]],  // x: columns, y: rows
                             uint3 thread_at [[thread_position_in_threadgroup]],
                             uint3 threads [[threads_per_threadgroup]]) {
    const uint row = group.y * threads.y + thread_at.y;
    if (row >= params.rows) {
        return;
    }
    uint rest = row;
    for (int dim = params.dims - 1; dim >= 0; dim--) {
        source += rest % params.shape[dim] * params.strides[dim];
        rest /= params.shape[dim];
    }
    uint column = group.x * threads.x * COPY_ELEMENTS_PER_THREAD + thread_at.x;
    source += column * params.column_stride;
    copy += ulong(row) * params.columns + column;
    for (int i = 0; i < COPY_ELEMENTS_PER_THREAD && column < params.columns; i++) {
        *copy = *source;
        source += threads.x * params.column_stride;
        copy += threads.x;
        column += threads.x;
    }
}

#define INSTANTIATE(bytes, T)                                                                  \
    template [[host_name("metal_copy_strided_bytes" #bytes)]] [[kernel]] void copy_strided<T>( \
        device const T*, device T*, constant const CopyParams&, uint3, uint3, uint3);

INSTANTIATE(1, uchar)
INSTANTIATE(2, ushort)
INSTANTIATE(4, uint)
INSTANTIATE(8, ulong)
