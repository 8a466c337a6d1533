// causal_conv1d on the GPU: one thread per channel of a sequence. Contract: causal_conv1d.h.
#include <metal_stdlib>

#include "common/metal_sigmoid.h"
#include "common/metal_state_slots.h"
#include "src/causal_conv1d/causal_conv1d_params.h"

using namespace metal;
using namespace tiny_llm_ext;

constant constexpr int WIDTH = CAUSAL_CONV1D_WIDTH;

// T: dtype of x and states. W: dtype of the weight.
template <typename T, typename W>
[[kernel]] void causal_conv1d_channels(
    device const T* x [[buffer(0)]], device const W* weight [[buffer(1)]],
    device const int* cu_seqlens [[buffer(2)]], device const int* read_slots [[buffer(3)]],
    device const int* write_slots [[buffer(4)]], device T* states [[buffer(5)]],
    device float* y [[buffer(6)]], constant const CausalConv1dParams& params [[buffer(7)]],
    uint2 position [[thread_position_in_grid]]) {
    const int c = int(position.x), history = params.K - 1;
    if (c >= params.C) {
        return;
    }
    const StatefulSequence sequence =
        sequence_of(int(position.y), params.T, params.S, cu_seqlens, read_slots);
    // Taps and inputs are right-aligned: the newest input and its tap are last, and the unused
    // positions before the K taps are zero.
    const int unused = WIDTH - params.K;
    float taps[WIDTH];
    T inputs[WIDTH];
    for (int i = 0; i < WIDTH; i++) {
        const int j = i - unused;
        taps[i] = j < 0
                      ? 0.0f
                      : float(weight[c * params.weight_strides[0] + j * params.weight_strides[1]]);
        const bool is_stored = sequence.read_slot >= 0 && j >= 0 && j < history;
        inputs[i] =
            is_stored ? states[(long(sequence.read_slot) * history + j) * params.C + c] : T(0.0f);
    }
    for (int t = sequence.first; t < sequence.end; t++) {
        inputs[WIDTH - 1] = x[t * params.x_stride + c];
        float sum = 0;
        for (int i = 0; i < WIDTH; i++) {
            sum += taps[i] * float(inputs[i]);
        }
        y[long(t) * params.C + c] = silu(sum);
        const int slot = write_slot(t, params.S, write_slots);
        for (int i = 0; i < WIDTH - 1; i++) {
            inputs[i] = i < unused ? T(0.0f) : inputs[i + 1];
            if (slot >= 0 && i >= unused) {
                states[(long(slot) * history + i - unused) * params.C + c] = inputs[i];
            }
        }
    }
}

#define INSTANTIATE(name, T, W)                                                                  \
    template [[host_name("causal_conv1d_channels_" #name)]] [[kernel]] void                      \
    causal_conv1d_channels<T, W>(device const T*, device const W*, device const int*,            \
                                 device const int*, device const int*, device T*, device float*, \
                                 constant const CausalConv1dParams&, uint2);

INSTANTIATE(float32, float, float)
INSTANTIATE(float16, half, half)
INSTANTIATE(bfloat16, bfloat, bfloat)
INSTANTIATE(float16_weight_float32, half, float)
INSTANTIATE(bfloat16_weight_float32, bfloat, float)
