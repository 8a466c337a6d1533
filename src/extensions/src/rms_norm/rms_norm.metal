// rms_norm and add_rms_norm on the GPU: one threadgroup per row. Contract: rms_norm.h.
//
// A row is read from memory once: a thread keeps its elements in registers while the threadgroup
// sums the squares. Only elements beyond register capacity (D > 8192) are read again.
#include <metal_stdlib>

#include "common/metal_reduce.h"
#include "common/metal_row_params.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int READS = ROW_READS;
// Loads per thread that stay in registers.
constant constexpr int REGISTER_LOADS = 2;

// round(x · factor) · weight, the first product rounded to the weight's dtype, the second to T.
template <typename T, typename W>
T normalize(float x, float factor, W weight) {
    return T(float(W(x * factor)) * float(weight));
}

// Row to normalize: InputRow reads x; SumRow computes and stores the rounded sum of x and y.
template <typename T>
struct InputRow {
    device const T* x;

    float load(int i) const { return float(x[i]); }
    float reload(int i) const { return float(x[i]); }
};

template <typename T>
struct SumRow {
    device const T* x;
    device const T* y;
    device T* sum;

    float load(int i) const {
        const T added = T(float(x[i]) + float(y[i]));
        sum[i] = added;
        return float(added);
    }
    float reload(int i) const { return float(sum[i]); }  // no barrier, as this thread stored sum[i]
};

template <typename T, typename W, typename Row>
void norm_row(Row row, device const W* weight, device T* out, int D, float eps,
              threadgroup float* partial, uint thread_index, uint threads, uint simdgroup,
              uint lane, uint simdgroups) {
    const int step = int(threads) * READS, start = int(thread_index) * READS;
    float elements[REGISTER_LOADS * READS];
    float squares = 0;
    for (int k = 0; k < REGISTER_LOADS; k++) {
        for (int j = 0; j < READS; j++) {
            const int i = start + k * step + j;
            const float x = i < D ? row.load(i) : 0.0f;
            elements[k * READS + j] = x;
            squares += x * x;
        }
    }
    for (int first = start + REGISTER_LOADS * step; first < D; first += step) {
        for (int i = first; i < min(first + READS, D); i++) {
            const float x = row.load(i);
            squares += x * x;
        }
    }
    squares = threadgroup_sum(squares, partial, simdgroup, lane, simdgroups);
    const float factor = 1.0f / sqrt(squares / float(D) + eps);
    for (int k = 0; k < REGISTER_LOADS; k++) {
        for (int j = 0; j < READS; j++) {
            const int i = start + k * step + j;
            if (i < D) {
                out[i] = normalize<T>(elements[k * READS + j], factor, weight[i]);
            }
        }
    }
    for (int first = start + REGISTER_LOADS * step; first < D; first += step) {
        for (int i = first; i < min(first + READS, D); i++) {
            out[i] = normalize<T>(row.reload(i), factor, weight[i]);
        }
    }
}

template <typename T, typename W>
[[kernel]] void rms_norm_row(
    device const T* x [[buffer(0)]], device const W* weight [[buffer(1)]],
    device T* out [[buffer(2)]], constant const RowParams& params [[buffer(3)]],
    uint m [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[32];
    const InputRow<T> row = {x + long(m) * params.strides[0]};
    norm_row<T, W>(row, weight, out + long(m) * params.D, params.D, params.eps, partial,
                   thread_index, threads, simdgroup, lane, simdgroups);
}

template <typename T, typename W>
[[kernel]] void add_rms_norm_row(
    device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
    device const W* weight [[buffer(2)]], device T* sum [[buffer(3)]], device T* out [[buffer(4)]],
    constant const RowParams& params [[buffer(5)]], uint m [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[32];
    const SumRow<T> row = {x + long(m) * params.strides[0], y + long(m) * params.strides[1],
                           sum + long(m) * params.D};
    norm_row<T, W>(row, weight, out + long(m) * params.D, params.D, params.eps, partial,
                   thread_index, threads, simdgroup, lane, simdgroups);
}

#define INSTANTIATE(name, T, W)                                                                   \
    template [[host_name("rms_norm_row_" #name)]] [[kernel]] void rms_norm_row<T, W>(             \
        device const T*, device const W*, device T*, constant const RowParams&, uint, uint, uint, \
        uint, uint, uint);                                                                        \
    template [[host_name("rms_norm_add_row_" #name)]] [[kernel]] void add_rms_norm_row<T, W>(     \
        device const T*, device const T*, device const W*, device T*, device T*,                  \
        constant const RowParams&, uint, uint, uint, uint, uint, uint);

INSTANTIATE(float32, float, float)
INSTANTIATE(float16, half, half)
INSTANTIATE(bfloat16, bfloat, bfloat)
INSTANTIATE(float16_weight_float32, half, float)
INSTANTIATE(bfloat16_weight_float32, bfloat, float)
