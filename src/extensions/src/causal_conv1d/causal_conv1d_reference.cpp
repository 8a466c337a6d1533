// causal_conv1d: scalar reference kernel.
#include "common/sigmoid.h"
#include "src/causal_conv1d/causal_conv1d_kernels.h"

namespace tiny_llm_ext {

namespace {

void convolve_channel(const CausalConv1dJob& job, int64_t sequence, int64_t c) {
    const int64_t history = job.K - 1;
    float inputs[MAX_CONV_WIDTH] = {};  // inputs of the current token, oldest first
    if (const int64_t slot = read_slot(job.slots, sequence); slot >= 0) {
        for (int64_t j = 0; j < history; j++) {
            inputs[j] = load_element(job.states, (slot * history + j) * job.C + c, job.format);
        }
    }
    const int64_t end = end_token(job.slots, sequence);
    for (int64_t t = first_token(job.slots, sequence); t < end; t++) {
        inputs[history] = load_element(job.x, t * job.x_stride + c, job.format);
        float sum = 0;
        for (int64_t j = 0; j < job.K; j++) {
            const int64_t tap = c * job.weight_strides[0] + j * job.weight_strides[1];
            sum += load_element(job.weight, tap, job.weight_format) * inputs[j];
        }
        job.y[t * job.C + c] = silu(sum);
        for (int64_t j = 0; j < history; j++) {
            inputs[j] = inputs[j + 1];
        }
        if (const int64_t slot = write_slot(job.slots, t); slot >= 0) {
            for (int64_t j = 0; j < history; j++) {
                store_element(job.states, (slot * history + j) * job.C + c, job.format, inputs[j]);
            }
        }
    }
}

}  // namespace

void causal_conv1d_reference(const CausalConv1dJob& job, int64_t sequence, int64_t first,
                             int64_t last) {
    for (int64_t c = first; c < last; c++) {
        convolve_channel(job, sequence, c);
    }
}

}  // namespace tiny_llm_ext
