// quantized_matmul, Week 4's second step: LANES words of weights at a time.
//
// A vector of words holds LANES · per_word weights; lane l has word l. Shifting all lanes by k ·
// bits and masking gives weight k of every word: weights l · per_word + k. They are multiplied by a
// vector of the corresponding activations, so a row's activations are permuted to that order once,
// before any output is computed:
//
//     permuted[(block · per_word + k) · LANES + l] = a[(block · LANES + l) · per_word + k]
//
// Lanes are reduced at the very end, in an order that depends only on I, so a row has the same bits
// in any batch.
#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Lays out row m of the activations and sums each of its groups in the order of i.
//
// permuted: space for I elements. sums: space for I/group_size.
void prepare(const QuantizedMatmulJob& job, int64_t m, float* permuted, float* sums) {
    // [task 4.2.2 prepare]
    // Loops in the order of i: computing an element's position from i would take a division, which
    // costs more than the multiplications.
    const int per_word = 32 / job.bits;
    int64_t i = 0;
    for (int64_t g = 0; g < job.I / job.group_size; g++) {
        sums[g] = 0;
        for (; i < (g + 1) * job.group_size; permuted += LANES * per_word) {  // one block
            for (int lane = 0; lane < LANES; lane++) {
                for (int k = 0; k < per_word; k++, i++) {
                    const float x = load_element(job.a, m * job.I + i, job.format);
                    permuted[k * LANES + lane] = x;
                    sums[g] += x;
                }
            }
        }
    }
    // [/task 4.2.2 prepare]
}

// Computes output o of the prepared row. `bits` is a template parameter, so that shifts are
// constants.
template <int bits>
float dot(const QuantizedMatmulJob& job, int64_t o, const float* permuted, const float* sums) {
    // [task 4.2.2 dot]
    constexpr int WEIGHTS_PER_WORD = 32 / bits;
    const int64_t groups = job.I / job.group_size;
    const int blocks = job.group_size / (LANES * WEIGHTS_PER_WORD);  // per group
    const uint32_t* words = job.b + o * (job.I / WEIGHTS_PER_WORD);
    Floats total = {};
    float biased = 0;
    for (int64_t g = 0; g < groups; g++) {
        // Two accumulators hide the latency of additions.
        Floats even = {}, odd = {};
        for (int block = 0; block < blocks;
             block++, words += LANES, permuted += WEIGHTS_PER_WORD * LANES) {
            const Ints word = load_bits<Ints>(words);
            for (int k = 0; k < WEIGHTS_PER_WORD; k += 2) {
                const Ints first = word >> (k * bits) & ((1 << bits) - 1);
                const Ints second = word >> ((k + 1) * bits) & ((1 << bits) - 1);
                even = fma(__builtin_convertvector(first, Floats),
                           load_bits<Floats>(permuted + k * LANES), even);
                odd = fma(__builtin_convertvector(second, Floats),
                          load_bits<Floats>(permuted + (k + 1) * LANES), odd);
            }
        }
        const float scale = load_element(job.scales, o * groups + g, job.scale_format);
        total = fma(splat(scale), even + odd, total);
        biased += load_element(job.biases, o * groups + g, job.scale_format) * sums[g];
    }
    return sum(total) + biased;
    // [/task 4.2.2 dot]
}

}  // namespace

void quantized_matmul_vectors(const QuantizedMatmulJob& job, int64_t first_output,
                              int64_t last_output) {
    if (job.group_size < LANES * (32 / job.bits)) {  // a vector of words spans several groups
        quantized_matmul_factored(job, first_output, last_output);
        return;
    }
    float* permuted = new float[job.I + job.I / job.group_size];
    float* sums = permuted + job.I;
    for (int64_t m = 0; m < job.M; m++) {
        prepare(job, m, permuted, sums);
        for (int64_t o = first_output; o < last_output; o++) {
            const float x =
                job.bits == 4 ? dot<4>(job, o, permuted, sums) : dot<8>(job, o, permuted, sums);
            store_element(job.out, m * job.O + o, job.format, x);
        }
    }
    delete[] permuted;
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
