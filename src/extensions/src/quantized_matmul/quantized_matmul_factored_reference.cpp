// quantized_matmul, Week 4's first step: hoists work that does not depend on the output.
//
// For every output, the reference's three loops branch on the activations' format, widen them, and
// sum each group. Here a row's activations are widened and summed by group once; only the work with
// the weights remains per output.
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

// Widens row m of the activations and sums each of its groups in the order of i.
//
// a: space for I elements. sums: space for I/group_size.
void prepare(const QuantizedMatmulJob& job, int64_t m, float* a, float* sums) {
    // [task 4.2.1 prepare]
    for (int64_t i = 0; i < job.I; i++) {
        a[i] = load_element(job.a, m * job.I + i, job.format);
    }
    for (int64_t g = 0; g < job.I / job.group_size; g++) {
        sums[g] = 0;
        for (int64_t i = g * job.group_size; i < (g + 1) * job.group_size; i++) {
            sums[g] += a[i];
        }
    }
    // [/task 4.2.1 prepare]
}

// Computes output o of the prepared row, unpacking one uint32 of weights at a time.
float dot(const QuantizedMatmulJob& job, int64_t o, const float* a, const float* sums) {
    // [task 4.2.1 dot]
    const int64_t groups = job.I / job.group_size;
    const int per_word = 32 / job.bits, words_per_group = job.group_size / per_word;
    const uint32_t mask = (1u << job.bits) - 1;
    const uint32_t* word = job.b + o * (job.I / per_word);
    float total = 0;
    for (int64_t g = 0; g < groups; g++) {
        float products = 0;
        for (int w = 0; w < words_per_group; w++, word++, a += per_word) {
            for (int k = 0; k < per_word; k++) {
                products += static_cast<float>(*word >> (k * job.bits) & mask) * a[k];
            }
        }
        total += load_element(job.scales, o * groups + g, job.scale_format) * products;
        total += load_element(job.biases, o * groups + g, job.scale_format) * sums[g];
    }
    return total;
    // [/task 4.2.1 dot]
}

}  // namespace

void quantized_matmul_factored(const QuantizedMatmulJob& job, int64_t first_output,
                               int64_t last_output) {
    float* a = new float[job.I + job.I / job.group_size];
    float* sums = a + job.I;
    for (int64_t m = 0; m < job.M; m++) {
        prepare(job, m, a, sums);
        for (int64_t o = first_output; o < last_output; o++) {
            store_element(job.out, m * job.O + o, job.format, dot(job, o, a, sums));
        }
    }
    delete[] a;
}

}  // namespace tiny_llm_ext
