// Elementwise Metal kernel of two inputs, for row operations.
#pragma once

#include <metal_stdlib>

#include "common/metal_row_params.h"

/// out = Function::apply(a, b): ROW_READS adjacent elements per thread. b may have one element per
/// row.
template <typename T, typename Function>
[[kernel]] void map_rows(device const T* a [[buffer(0)]], device const T* b [[buffer(1)]],
                         device T* out [[buffer(2)]],
                         constant const tiny_llm_ext::RowParams& params [[buffer(3)]],
                         uint2 position [[thread_position_in_grid]]) {
    const long m = position.y;
    const int first = int(position.x) * tiny_llm_ext::ROW_READS;
    device const T* a_row = a + m * params.strides[0];
    device const T* b_row = b + m * params.strides[1];
    device T* out_row = out + m * params.D;
    const int step = params.widths[1] == 1 ? 0 : 1;
    for (int i = first; i < metal::min(first + tiny_llm_ext::ROW_READS, params.D); i++) {
        out_row[i] = T(Function::template apply<T>(float(a_row[i]), float(b_row[i * step])));
    }
}

#define INSTANTIATE_MAP_ROWS(name, T, operation, Function)                                       \
    template [[host_name(#operation "_elements_" #name)]] [[kernel]] void map_rows<T, Function>( \
        device const T*, device const T*, device T*, constant const tiny_llm_ext::RowParams&,    \
        uint2);
