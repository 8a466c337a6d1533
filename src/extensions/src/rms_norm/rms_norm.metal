// rms_norm and add_rms_norm on the GPU: one threadgroup per row. Contract: rms_norm.h.
//
// A row is read from memory once: a thread keeps its elements in registers while the threadgroup
// sums the squares. Only elements beyond register capacity (D > 8192) are read again.
#include <metal_stdlib>

#include "common/metal_reduce.h"
#include "src/rms_norm/rms_norm_params.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int READS = RMS_NORM_READS;
constant constexpr int REGISTER_LOADS = RMS_NORM_REGISTER_LOADS;

// round(x · factor) · weight, both products rounded to T.
template <typename T>
T normalize(float x, float factor, T weight) {
    return T(float(T(x * factor)) * float(weight));
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

template <typename T, typename Row>
void norm_row(Row row, device const T* weight, device T* out, int D, float eps,
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
                out[i] = normalize(elements[k * READS + j], factor, weight[i]);
            }
        }
    }
    for (int first = start + REGISTER_LOADS * step; first < D; first += step) {
        for (int i = first; i < min(first + READS, D); i++) {
            out[i] = normalize(row.reload(i), factor, weight[i]);
        }
    }
}

template <typename T>
[[kernel]] void rms_norm_row(
    device const T* x [[buffer(0)]], device const T* weight [[buffer(1)]],
    device T* out [[buffer(2)]], constant const RmsNormParams& params [[buffer(3)]],
    uint m [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint threads [[threads_per_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[32];
    const InputRow<T> row = {x + long(m) * params.x_stride};
    norm_row<T>(row, weight, out + long(m) * params.D, params.D, params.eps, partial, thread_index,
                threads, simdgroup, lane, simdgroups);
}

template <typename T>
[[kernel]] void add_rms_norm_row(
    device const T* x [[buffer(0)]], device const T* y [[buffer(1)]],
    device const T* weight [[buffer(2)]], device T* sum [[buffer(3)]], device T* out [[buffer(4)]],
    constant const RmsNormParams& params [[buffer(5)]], uint m [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint threads [[threads_per_threadgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup float partial[32];
    const SumRow<T> row = {x + long(m) * params.x_stride, y + long(m) * params.y_stride,
                           sum + long(m) * params.D};
    norm_row<T>(row, weight, out + long(m) * params.D, params.D, params.eps, partial, thread_index,
                threads, simdgroup, lane, simdgroups);
}

#define INSTANTIATE(name, T)                                                                    \
    template [[host_name("rms_norm_row_" #name)]] [[kernel]] void rms_norm_row<T>(              \
        device const T*, device const T*, device T*, constant const RmsNormParams&, uint, uint, \
        uint, uint, uint, uint);                                                                \
    template [[host_name("rms_norm_add_row_" #name)]] [[kernel]] void add_rms_norm_row<T>(      \
        device const T*, device const T*, device const T*, device T*, device T*,                \
        constant const RmsNormParams&, uint, uint, uint, uint, uint, uint);

INSTANTIATE(float32, float)
INSTANTIATE(float16, half)
INSTANTIATE(bfloat16, bfloat)
