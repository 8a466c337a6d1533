// quantized_matmul on AVX2, NEON and AVX-512 without BF16; on AVX-512 with BF16, for 8-bit weights,
// 8-bit activations and float16. Multiplies integers: activations are converted to fixed point, and
// every sum over a group is exact.
//
// 1. prepare: a group of activations a[i] becomes step · A[i] with integers |A[i]| < 2¹⁵ − 128. The
//    step is a power of two, so only A is rounded (fixed_point_rounding.h).
// 2. unpack: a vector holds one word of b for each of LANES outputs. Shifts and masks turn a word
//    into pairs of weights in 16-bit lanes: one from its lower half, one from its upper half.
// 3. multiply: 2 · LANES weights are multiplied by a pair of activations, and each output's two
//    products are added to its sum: one instruction with VNNI, two with AVX2 and NEON. Σ q·A fits
//    in 32 bits: 255 · 32767 · 128 < 2³¹. Integer sums do not depend on the order.
// 4. total += (scale · step) · Σ q·A + bias · (step · Σ A), in float32, one group after another.
//
// With many rows, step 3 is the bottleneck. Up to ROW_TILE rows share a register of weights. With
// few rows, weights are unpacked as they are multiplied; with many rows, each group is unpacked
// once for all rows. Weights: fixed_point_weights.h.
//
// A 16-bit activation is two signed bytes, 256 · high + low. AVX2 would not gain from multiplying
// bytes (vpmaddubsw, 32 products per instruction): as many multiplications, more additions. ARM
// with DotProd gains, for 4-bit weights: two sdot replace four smlal for 16 exact products.
//
// Error bound. |a − step·A| ≤ step/2 ≤ 1.004 · 2⁻¹⁵ · max |a|, and 0 for a bfloat16 value (8
// significant bits) above 2⁻⁷ of its group's maximum, or a float16 value (11 bits) above 2⁻⁴. The
// maximum of 128 values is at most √128 times their root mean square, so the activations' error is
// less than 2⁻¹¹ of the root mean square, the precision of float16; a kernel that rounded weights
// to bfloat16 would cause errors up to 2⁻⁹. The same A multiplies q and the bias, so the error is
// Σ w·(step·A − a) with dequantized weights w: it does not grow with the larger scale and bias
// terms, which cancel.
//
// 8-bit activations (QuantizedMatmulJob::activation_bits) are integers |A[i]| ≤ 127 with the step
// max |a| / 127, so |error| ≤ 1.01 · 2⁻⁸ · max |a|. Instructions that
// multiply bytes then compute four products per 32-bit lane instead of two: vpdpbusd, sdot, or
// vpmaddubsw with sums in 16 bits. 8-bit weights without VNNI, and all weights on NEON without
// DotProd, are multiplied by the same integers in 16-bit lanes.
//
// NaN or infinity in a group makes the row's outputs NaN. Steps are at least 2⁻¹¹¹, so that they
// are not subnormal.
#include "common/scratch.h"
#include "src/quantized_matmul/fast/fixed_point_activations.h"
#include "src/quantized_matmul/fast/fixed_point_weights.h"
#include "src/quantized_matmul/fast/row_tiles.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int ROW_TILE = 6;  // its sums take most registers
// Maximum rows for multiply_few_rows. VNNI multiplies and adds with one instruction instead of two,
// which leaves slots to unpack weights again for more rows.
constexpr int DIRECT_ROWS = (USES_VNNI ? 3 : 2) * ROW_TILE;
constexpr int64_t ROW_BLOCK = 128;  // rows for which a pack is read once

// Step 4 for ROWS rows: `totals` is rows × PACK_VECTORS.
template <int ROWS, typename Sums>
inline void add_group(const Pack& pack, int64_t g, const Factors* factors,
                      const Sums (&sums)[ROWS][PACK_VECTORS], Floats* totals) {
#pragma GCC unroll 4
    for (int v = 0; v < PACK_VECTORS; v++) {
        const Floats stored = pack.factor(pack.scales, g, v);
        const auto [scale, bias] = pack.biases == nullptr
                                       ? symmetric_factors(*pack.job, stored)
                                       : ScaleAndBias{stored, pack.factor(pack.biases, g, v)};
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const Floats dot = __builtin_convertvector(total_of(sums[r][v]), Floats);
            Floats& total = totals[r * PACK_VECTORS + v];
            total = fma(scale * splat(factors[r].step), dot, total);
            total = fma(bias, splat(factors[r].sum), total);
        }
    }
}

// Steps 3 and 4 for one group and ROWS rows.
template <int ROWS, typename Weights>
__attribute__((always_inline)) inline void multiply_group(const Pack& pack, const Weights& weights,
                                                          const Activations& a, int64_t g,
                                                          int64_t row, Floats* totals) {
    using Format = typename Weights::Format;
    using Sums = typename Format::Sums;
    constexpr int STEP = Format::STEP, WORDS = PartActivations<Sums>::WORDS;
    constexpr int CHAINS = Sums::CHAINS > ROWS ? Sums::CHAINS / ROWS : 1;  // per output
    const int64_t row_words = a.row_words;
    const Word* words = a.words(g, row);
    Sums chains[CHAINS][ROWS][PACK_VECTORS] = {};
    for (int64_t step = 0; step < row_words / (STEP * WORDS); step++) {
#pragma GCC unroll 8
        for (int i = 0; i < STEP; i++) {
            weights.prefetch(step, i);
            typename Format::Part w[PACK_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < PACK_VECTORS; v++) {
                w[v] = weights.part(step, i, v);
            }
#pragma GCC unroll 6
            for (int r = 0; r < ROWS; r++) {
                const auto x =
                    PartActivations<Sums>::load(words + r * row_words + (step * STEP + i) * WORDS);
#pragma GCC unroll 4
                for (int v = 0; v < PACK_VECTORS; v++) {
                    multiply_add(chains[i % CHAINS][r][v], x, w[v]);
                }
            }
        }
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
            for (int v = 0; v < PACK_VECTORS; v++) {
                end_step(chains[0][r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int chain = 1; chain < CHAINS; chain++) {
#pragma GCC unroll 2
        for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 2
            for (int v = 0; v < PACK_VECTORS; v++) {
                add(chains[0][r][v], chains[chain][r][v]);
            }
        }
    }
    add_group<ROWS>(pack, g, a.factors + g * a.M + row, chains[0], totals);
}

// Multiplies few rows: every tile of rows unpacks all weights of the pack again.
template <int ROWS, typename WeightFormat>
__attribute__((noinline)) void multiply_packed_tile(const Pack& pack, const Activations& a,
                                                    int64_t row, Floats* totals) {
    Floats sums[ROWS * PACK_VECTORS];  // in registers, if they suffice
    memcpy(sums, totals, sizeof sums);
    for (int64_t g = 0; g < pack.groups; g++) {
        multiply_group<ROWS>(pack, pack.group<WeightFormat>(g), a, g, row, sums);
    }
    memcpy(totals, sums, sizeof sums);
}
template <typename WeightFormat>
void multiply_few_rows(const Pack& pack, const Activations& a, int64_t first_row, int64_t rows,
                       Floats* totals) {
    for_tiles<ROW_TILE>(rows, [&]<int ROWS>(int64_t row) {
        multiply_packed_tile<ROWS, WeightFormat>(pack, a, first_row + row,
                                                 totals + row * PACK_VECTORS);
    });
}

// Multiplies many rows: each group is unpacked once for all tiles.
template <int ROWS, typename WeightFormat>
__attribute__((noinline)) void multiply_unpacked_tile(const Pack& pack,
                                                      const UnpackedGroup<WeightFormat>& weights,
                                                      const Activations& a, int64_t g, int64_t row,
                                                      Floats* totals) {
    multiply_group<ROWS>(pack, weights, a, g, row, totals);
}
template <typename WeightFormat>
void multiply_many_rows(const Pack& pack, const Activations& a, int64_t first_row, int64_t rows,
                        Floats* totals) {
    constexpr int WORDS = PartActivations<typename WeightFormat::Sums>::WORDS;
    typename WeightFormat::Part parts[MAX_GROUP / 2][PACK_VECTORS];
    for (int64_t g = 0; g < pack.groups; g++) {
        unpack_group(pack.group<WeightFormat>(g), a.row_words / WORDS, parts);
        for_tiles<ROW_TILE>(rows, [&]<int ROWS>(int64_t row) {
            multiply_unpacked_tile<ROWS>(pack, UnpackedGroup<WeightFormat>{parts}, a, g,
                                         first_row + row, totals + row * PACK_VECTORS);
        });
    }
}

// Rounds and stores output rows of a pack that starts at output `first`.
void store_rows(const QuantizedMatmulJob& job, int64_t first, int outputs, int64_t first_row,
                int64_t rows, const Floats* totals) {
    int64_t at = first_row * job.O + first;
    for (int64_t r = 0; r < rows; r++, at += job.O) {
        for (int v = 0; v < PACK_VECTORS && v * LANES < outputs; v++) {
            const Floats x = totals[r * PACK_VECTORS + v];
            const int left = outputs - v * LANES;
            if (left >= LANES) {  // a copy of constant length is one instruction
                store(job.out, at + v * LANES, job.format, x);
            } else {
                store(job.out, at + v * LANES, job.format, x, left);
            }
        }
    }
}

// totals += the products of a pack and `rows` rows, starting at `first_row`.
void multiply(const Pack& pack, const Activations& a, int64_t first_row, int64_t rows,
              Floats* totals) {
    with_weight_format(*pack.job, [&]<typename WeightFormat>() {
        const auto run = rows <= DIRECT_ROWS ? multiply_few_rows<WeightFormat>
                                             : multiply_many_rows<WeightFormat>;
        run(pack, a, first_row, rows, totals);
    });
}

// --- the kernel ---------------------------------------------------------------------------------

int64_t scratch_bytes(const QuantizedMatmulJob& job) {
    const int64_t factors = job.I / job.group_size * static_cast<int64_t>(sizeof(Factors));
    const int bytes = multiplies_bytes(job) ? 1 : 2;
    return job.M * (job.I * bytes + factors);
}

void prepare(const QuantizedMatmulJob& job, void* scratch, int64_t first_row, int64_t last_row) {
    const Activations activations(job, scratch);
    for (int64_t m = first_row; m < last_row; m++) {
        for (int64_t g = 0; g < job.I / job.group_size; g++) {
            prepare_group(job, activations, m, g);
        }
    }
}

void run(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
         int64_t last_output) {
    const Activations activations(job, const_cast<void*>(scratch));
    const int64_t block = job.M < ROW_BLOCK ? job.M : ROW_BLOCK;
    Floats* totals = reinterpret_cast<Floats*>(thread_scratch(block * PACK_OUTPUTS));
    for (int64_t row = 0; row < job.M; row += block) {
        const int64_t rows = job.M - row < block ? job.M - row : block;
        for (int64_t o = first_output; o < last_output; o += PACK_OUTPUTS) {
            const int64_t left = last_output - o;
            const int outputs = left < PACK_OUTPUTS ? static_cast<int>(left) : PACK_OUTPUTS;
            for (int64_t i = 0; i < rows * PACK_VECTORS; i++) {
                totals[i] = Floats{};
            }
            multiply(pack_of(job, o, outputs), activations, row, rows, totals);
            store_rows(job, o, outputs, row, rows, totals);
        }
    }
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_fixed_point = {scratch_bytes, prepare, run,
                                                            /*prepack_rows=*/STREAM_OUTPUTS};

}  // namespace tiny_llm_ext::TINY_LLM_ISA
