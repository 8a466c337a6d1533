// quantized_matmul: scalar reference kernel, three loops.
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

// Computes one output of one row, group by group, in the order of i.
float dot(const QuantizedMatmulJob& job, int64_t m, int64_t o) {
    // [task 2.2.2 dot]
    const int64_t groups = job.I / job.group_size;
    const int per_word = 32 / job.bits;
    const uint32_t mask = (1u << job.bits) - 1;
    const uint32_t* words = job.b + o * (job.I / per_word);
    const uint16_t* a = job.a + m * job.I;
    float total = 0;
    for (int64_t g = 0; g < groups; g++) {
        float products = 0;  // Σ q·a
        float sum = 0;       // Σ a
        for (int64_t i = g * job.group_size; i < (g + 1) * job.group_size; i++) {
            const uint32_t q = words[i / per_word] >> (i % per_word * job.bits) & mask;
            const float x = load_element(a, i, job.format);
            products += static_cast<float>(q) * x;
            sum += x;
        }
        total += load_element(job.scales, o * groups + g, job.scale_format) * products;
        total += load_element(job.biases, o * groups + g, job.scale_format) * sum;
    }
    return total;
    // [/task 2.2.2 dot]
}

}  // namespace

void quantized_matmul_reference(const QuantizedMatmulJob& job, int64_t first_output,
                                int64_t last_output) {
    // [task 2.2.2 outputs]
    for (int64_t o = first_output; o < last_output; o++) {
        for (int64_t m = 0; m < job.M; m++) {
            store_element(job.out, m * job.O + o, job.format, dot(job, m, o));
        }
    }
    // [/task 2.2.2 outputs]
}

}  // namespace tiny_llm_ext
