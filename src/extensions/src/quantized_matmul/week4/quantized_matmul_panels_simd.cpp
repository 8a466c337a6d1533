// quantized_matmul, Week 4's fourth step: a panel of weights is unpacked once for many rows.
//
// With one row of activations, a weight is unpacked and used once. With M rows, the previous
// kernels unpack it M times. Here the integers of PACK_ROWS outputs of one group become float32
// once, at most 16 KB, and all rows multiply with them:
//
//     panel[i · PACK_ROWS + n] = q[first + n, i]
//
// The integers are exact and summation orders equal those of quantized_matmul_prepacked, so a row
// has the same bits in both kernels, and batches of few rows are delegated to
// quantized_matmul_prepacked.
#include "src/quantized_matmul/week4/panels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

struct PanelsOfFloats {
    using Element = float;

    template <int bits>
    static void unpack(const uint32_t* words, int group_size, float* panel);

    template <int rows>
    static TileSums<rows> products(const QuantizedMatmulJob& job, const float* a, int64_t m,
                                   int64_t g, const float* panel);
};

// Unpacks one group of PACK_ROWS outputs.
//
// words: the group's prepacked words. panel: group_size × PACK_ROWS.
template <int bits>
void PanelsOfFloats::unpack(const uint32_t* words, int group_size, float* panel) {
    // [task 4.4.1 unpack]
    constexpr int WEIGHTS_PER_WORD = 32 / bits;
    for (int i = 0; i < group_size; i += WEIGHTS_PER_WORD, words += PACK_ROWS) {
        for (int v = 0; v < VECTORS; v++) {
            const Ints word = load_bits<Ints>(words + v * LANES);
            for (int k = 0; k < WEIGHTS_PER_WORD; k++) {
                const Ints q = word >> (k * bits) & ((1 << bits) - 1);
                store(panel, (i + k) * PACK_ROWS + v * LANES, Format::float32,
                      __builtin_convertvector(q, Floats));
            }
        }
    }
    // [/task 4.4.1 unpack]
}

// Σ_i q[n, i] · a[m, i] over group g, for rows m … m + rows − 1 and PACK_ROWS outputs. `rows` is a
// template parameter, so that all sums stay in registers.
//
// a: M × I. panel: of group g.
template <int rows>
TileSums<rows> PanelsOfFloats::products(const QuantizedMatmulJob& job, const float* a, int64_t m,
                                        int64_t g, const float* panel) {
    // [task 4.4.1 products]
    a += m * job.I + g * job.group_size;
    TileSums<rows> sums = {};
    for (int i = 0; i < job.group_size; i++, panel += PACK_ROWS) {
        for (int v = 0; v < VECTORS; v++) {
            const Floats q = load_bits<Floats>(panel + v * LANES);
            for (int row = 0; row < rows; row++) {
                sums.sums[row][v] = fma(q, splat(a[row * job.I + i]), sums.sums[row][v]);
            }
        }
    }
    return sums;
    // [/task 4.4.1 products]
}

}  // namespace

void quantized_matmul_panels(const QuantizedMatmulJob& job, int64_t first_output,
                             int64_t last_output) {
    if (!job.prepacked || job.M < TILE_ROWS) {
        quantized_matmul_prefetched(job, first_output, last_output);
        return;
    }
    multiply_panels<PanelsOfFloats>(job, first_output, last_output);
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
