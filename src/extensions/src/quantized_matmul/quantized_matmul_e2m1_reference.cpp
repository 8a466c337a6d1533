// quantized_matmul with 4-bit floating-point weights: scalar reference kernel, three loops.
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

float e2m1_value(uint32_t code) { return 0.5f * TWICE_E2M1[code]; }

// Computes one output of one row, group by group, in the order of i.
float dot_e2m1(const QuantizedMatmulJob& job, int64_t m, int64_t o) {
    const int64_t groups = job.I / job.group_size;
    const uint32_t* words = job.b + o * (job.I / 8);
    float total = 0;
    for (int64_t g = 0; g < groups; g++) {
        float products = 0;  // Σ value·a
        for (int64_t i = g * job.group_size; i < (g + 1) * job.group_size; i++) {
            products += e2m1_value(words[i / 8] >> (i % 8 * 4) & 15) *
                        load_element(job.a, m * job.I + i, job.format);
        }
        total += load_element(job.scales, o * groups + g, job.scale_format) * products;
    }
    return total;
}

}  // namespace

void quantized_matmul_e2m1_reference(const QuantizedMatmulJob& job, int64_t first_output,
                                     int64_t last_output) {
    for (int64_t o = first_output; o < last_output; o++) {
        for (int64_t m = 0; m < job.M; m++) {
            store_element(job.out, m * job.O + o, job.format, dot_e2m1(job, m, o));
        }
    }
}

}  // namespace tiny_llm_ext
