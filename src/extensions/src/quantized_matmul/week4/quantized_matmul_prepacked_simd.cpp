// quantized_matmul, Week 4's third step: weights in read order.
//
// The vector kernel reads LANES words of one output, reduces its lanes, and continues with the next
// row. Here the first words of PACK_ROWS rows are adjacent, followed by their second words, and so
// on (common/prepacked.h). A vector of words is one word of LANES outputs:
//
//     for weight k of word w, lane l of vector v has weight (w · per_word + k) of output
//     first + v · LANES + l; `first` is the pack's first output
//
// All lanes multiply by the same activation. Scales and biases are loaded as vectors, one per lane,
// and nothing is reduced across lanes. After each group,
//
//     total = fma(scale, Σ_i q[i] · a[i], total), and then total = fma(bias, Σ_i a[i], total)
//
// in this order, as in panels.h, so that a row has the same bits in both kernels. Memory is read
// sequentially, so later words can be prefetched.
#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"
#include "src/quantized_matmul/week4/widened_rows.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int64_t LINE = 64;  // cache line, in bytes

// Prefetches PACK_ROWS words, `ahead` bytes after `words`. Prefetches do not block, and an address
// past the weights is harmless.
inline void fetch(const uint32_t* words, int64_t ahead) {
    // [task 4.3.3 fetch]
    const char* later = reinterpret_cast<const char*>(words) + ahead;
    for (int64_t byte = 0; byte < PACK_ROWS * 4; byte += LINE) {
        __builtin_prefetch(later + byte);
    }
    // [/task 4.3.3 fetch]
}

// Computes outputs first … first + PACK_ROWS − 1 of the widened row, as VECTORS vectors. `bits` and
// `fetches` are template parameters, so that shifts are constants and the loop has no branches.
template <int bits, bool fetches>
void block(const QuantizedMatmulJob& job, int64_t first, const float* a, const float* sums,
           Floats* out) {
    // [task 4.3.2 block]
    constexpr int WEIGHTS_PER_WORD = 32 / bits;
    const int64_t groups = job.I / job.group_size;
    const uint32_t* words = job.b + first * (job.I / WEIGHTS_PER_WORD);
    Floats totals[VECTORS] = {};
    for (int64_t g = 0; g < groups; g++) {
        Floats products[VECTORS] = {};
        for (int i = 0; i < job.group_size;
             i += WEIGHTS_PER_WORD, words += PACK_ROWS, a += WEIGHTS_PER_WORD) {
            if constexpr (fetches) {
                fetch(words, job.prefetch_distance);
            }
            Ints word[VECTORS];
            for (int v = 0; v < VECTORS; v++) {
                word[v] = load_bits<Ints>(words + v * LANES);
            }
            for (int k = 0; k < WEIGHTS_PER_WORD; k++) {
                const Floats x = splat(a[k]);
                for (int v = 0; v < VECTORS; v++) {
                    const Ints q = word[v] >> (k * bits) & ((1 << bits) - 1);
                    products[v] = fma(__builtin_convertvector(q, Floats), x, products[v]);
                }
            }
        }
        const Floats group_sum = splat(sums[g]);
        for (int v = 0; v < VECTORS; v++) {
            const int64_t offset = first * groups + g * PACK_ROWS + v * LANES;
            totals[v] = fma(load(job.scales, offset, job.scale_format), products[v], totals[v]);
            totals[v] = fma(load(job.biases, offset, job.scale_format), group_sum, totals[v]);
        }
    }
    for (int v = 0; v < VECTORS; v++) {
        out[v] = totals[v];
    }
    // [/task 4.3.2 block]
}

// Computes all rows of a job. Row-major weights are delegated to the vector kernel.
template <bool fetches>
void multiply(const QuantizedMatmulJob& job, int64_t first_output, int64_t last_output) {
    if (!job.prepacked) {  // weights are row-major if PACK_ROWS does not divide O
        quantized_matmul_vectors(job, first_output, last_output);
        return;
    }
    float* a = new float[job.I + job.I / job.group_size];
    float* sums = a + job.I;
    for (int64_t m = 0; m < job.M; m++) {
        widen(job, m, a, sums);
        for (int64_t o = first_output; o < last_output; o += PACK_ROWS) {
            Floats out[VECTORS];
            if (job.bits == 4) {
                block<4, fetches>(job, o, a, sums, out);
            } else {
                block<8, fetches>(job, o, a, sums, out);
            }
            for (int v = 0; v < VECTORS; v++) {
                store(job.out, m * job.O + o + v * LANES, job.format, out[v]);
            }
        }
    }
    delete[] a;
}

}  // namespace

void quantized_matmul_prepacked(const QuantizedMatmulJob& job, int64_t first_output,
                                int64_t last_output) {
    multiply<false>(job, first_output, last_output);
}

void quantized_matmul_prefetched(const QuantizedMatmulJob& job, int64_t first_output,
                                 int64_t last_output) {
    multiply<true>(job, first_output, last_output);
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
