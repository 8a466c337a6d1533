// quantized_matmul, Week 4's fifth step: panels of bfloat16 pairs.
//
// One AVX-512 instruction multiplies the two bfloat16 values of a lane with two others and adds
// both products to the lane's float32 sum. Integers up to 255 are exact in bfloat16, and the
// activations already have this format. A panel has two adjacent inputs per lane:
//
//     panel[i/2 · PACK_ROWS + n] = q[first + n, i] in the lower half, q[first + n, i + 1] above
//
// Other instruction sets need two instructions per half; their only gain is a panel of half the
// size. Sums round in a different order than with float32 panels, so a single row uses this kernel,
// too, because a row must have the same bits in any batch. float16 activations use the float32
// panels.
#include "src/quantized_matmul/week4/panels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

struct PanelsOfPairs {
    using Element = int32_t;

    template <int bits>
    static void unpack(const uint32_t* words, int group_size, int32_t* panel);

    template <int rows>
    static TileSums<rows> products(const QuantizedMatmulJob& job, const float* a, int64_t m,
                                   int64_t g, const int32_t* panel);
};

// Unpacks one quantization group of PACK_ROWS outputs to pairs of bfloat16 integers, a pair per
// int32. Integers 0 … 255 are exact in bfloat16: the upper half of their float32 is the bfloat16
// value, the lower half is zero, so two are combined without masking.
//
// words: the group's prepacked words. panel: group_size/2 × PACK_ROWS.
template <int bits>
void PanelsOfPairs::unpack(const uint32_t* words, int group_size, int32_t* panel) {
    // [task 4.4.2 unpack]
    constexpr int WEIGHTS_PER_WORD = 32 / bits, MASK = (1 << bits) - 1;
    for (int i = 0; i < group_size; i += WEIGHTS_PER_WORD, words += PACK_ROWS) {
        for (int v = 0; v < VECTORS; v++) {
            const Ints word = load_bits<Ints>(words + v * LANES);
            for (int k = 0; k < WEIGHTS_PER_WORD; k += 2) {
                const Ints first = word >> (k * bits) & MASK;
                const Ints second = word >> ((k + 1) * bits) & MASK;
                const Ints lower = as_ints(__builtin_convertvector(first, Floats)) >> 16;
                const Ints upper = as_ints(__builtin_convertvector(second, Floats));
                const Ints pair = lower | upper;
                memcpy(panel + (i + k) / 2 * PACK_ROWS + v * LANES, &pair, sizeof pair);
            }
        }
    }
    // [/task 4.4.2 unpack]
}

// Like PanelsOfFloats::products, but reads the activations from job.a, two at a time.
template <int rows>
TileSums<rows> PanelsOfPairs::products(const QuantizedMatmulJob& job, const float*, int64_t m,
                                       int64_t g, const int32_t* panel) {
    // [task 4.4.2 products]
    const uint16_t* a = job.a + m * job.I + g * job.group_size;
    TileSums<rows> sums = {};
    for (int i = 0; i < job.group_size; i += 2, panel += PACK_ROWS) {
        for (int v = 0; v < VECTORS; v++) {
            const Ints q = load_bits<Ints>(panel + v * LANES);
            for (int row = 0; row < rows; row++) {
                const Ints pair = splat(load_bits<int32_t>(a + row * job.I + i));
                sums.sums[row][v] = fma(q, pair, sums.sums[row][v]);
            }
        }
    }
    return sums;
    // [/task 4.4.2 products]
}

}  // namespace

void quantized_matmul_pairs(const QuantizedMatmulJob& job, int64_t first_output,
                            int64_t last_output) {
    if (job.prepacked && job.format == Format::bfloat16) {
        multiply_panels<PanelsOfPairs>(job, first_output, last_output);
        return;
    }
    quantized_matmul_panels(job, first_output, last_output);
}

}  // namespace tiny_llm_ext::TINY_LLM_ISA
