// quantized_matmul with integer products, for AVX2, NEON and AVX-512 without BF16; on AVX-512 with
// BF16, for 8-bit weights or 8-bit activations. Activations are converted to fixed point, and every
// sum over a group is exact.
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
// once for all rows. Row-major weights are first interleaved, a block at a time.
//
// A 16-bit activation is two signed bytes, 256 · high + low. AVX2 would not gain from multiplying
// bytes (vpmaddubsw, 32 products per instruction): as many multiplications, more additions. ARM
// with DotProd gains, for 4-bit weights: two sdot replace four smlal for 16 exact products.
//
// Error bound. |a − step·A| ≤ step/2 ≤ 1.004 · 2⁻¹⁵ · max |a|, and 0 for a bfloat16 value (8
// significant bits) above 2⁻⁷ of its group's maximum. The maximum of 128 values is at most √128
// times their root mean square, so the activations' error is less than 2⁻¹¹ of the root mean
// square; a kernel that rounded weights to bfloat16 would cause errors up to 2⁻⁹. The same A
// multiplies q and the bias, so the error is Σ w·(step·A − a) with dequantized weights w: it does
// not grow with the larger scale and bias terms, which cancel. float16 (11 bits) uses a second row
// of integers for the remainder, with steps 2¹⁵ times smaller: |error| ≤ 1.004 · 2⁻³⁰ · max |a|.
//
// 8-bit activations (QuantizedMatmulJob::activation_bits) are integers |A[i]| ≤ 127 with the step
// max |a| / 127, so |error| ≤ 1.01 · 2⁻⁸ · max |a|; float16 has no second row. Instructions that
// multiply bytes then compute four products per 32-bit lane instead of two: vpdpbusd, sdot, or
// vpmaddubsw with sums in 16 bits. 8-bit weights without VNNI, and all weights on NEON without
// DotProd, are multiplied by the same integers in 16-bit lanes.
//
// NaN or infinity in a group makes the row's outputs NaN. Steps are at least 2⁻¹¹¹, so that neither
// they nor those of the remainder are subnormal.
#include "common/scratch.h"
#include "common/simd.h"
#include "common/simd_transpose.h"
#include "src/quantized_matmul/fast/fixed_point_activations.h"
#include "src/quantized_matmul/fast/fixed_point_vectors.h"
#include "src/quantized_matmul/fast/floating_point_weights.h"
#include "src/quantized_matmul/fast/row_tiles.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int PACK_VECTORS = LANES == 16 ? 4 : 2;   // vectors of outputs per pack
constexpr int PACK_OUTPUTS = PACK_VECTORS * LANES;  // outputs computed together
constexpr int ROW_TILE = 6;                         // its sums take most registers
// Maximum rows for multiply_few_rows. VNNI multiplies and adds with one instruction instead of two,
// which leaves slots to unpack weights again for more rows.
constexpr int DIRECT_ROWS = (USES_VNNI ? 3 : 2) * ROW_TILE;
constexpr int64_t BLOCK_ROWS = 128;          // rows of integers for which a pack is read once
constexpr int64_t PREFETCH_DISTANCE = 4096;  // prefetch distance in bytes, for prepacked weights
constexpr int64_t BLOCK_BYTES = 8192;        // of row-major weights, interleaved at once
constexpr int64_t BLOCK_WORDS = BLOCK_BYTES / 4 / PACK_OUTPUTS;  // per output
static_assert(BLOCK_WORDS % (MAX_GROUP * 8 / 32) == 0);          // whole groups

// --- weights ------------------------------------------------------------------------------------

// Weights of PACK_OUTPUTS outputs in the layout of common/prepacked.h, for some of the groups: all
// groups of prepacked weights, or a block of row-major weights.
struct Pack {
    const QuantizedMatmulJob* job;
    const uint16_t* scales;  // all groups × PACK_OUTPUTS
    const uint16_t* biases;  // all groups × PACK_OUTPUTS; nullptr for floating-point weights
    int64_t first_group, last_group;
    const uint32_t* words;  // from first_group on: words per row × PACK_OUTPUTS
    int64_t ahead;          // distance in bytes of what to prefetch while words are multiplied

    const uint32_t* group(int64_t g) const {
        return words + (g - first_group) * job->group_size * job->bits / 32 * PACK_OUTPUTS;
    }
    Floats factor(const uint16_t* of, int64_t g, int v) const {
        return load(of, g * PACK_OUTPUTS + v * LANES, job->scale_format);
    }
};

// Pack that points into prepacked weights.
Pack prepacked(const QuantizedMatmulJob& job, int64_t first) {
    const int64_t groups = job.I / job.group_size;
    return {&job,
            job.scales + first * groups,
            job.biases == nullptr ? nullptr : job.biases + first * groups,
            0,
            groups,
            job.b + first * (job.I * job.bits / 32),
            PREFETCH_DISTANCE};
}

// Transposes columns first_column … last_column − 1 of PACK_OUTPUTS rows of `matrix`, starting at
// row `first`, into `out`: that many columns × PACK_OUTPUTS. A vector has LANES elements. Lanes
// past the last output repeat the last row.
template <typename Vector>
void interleave(const void* matrix, int64_t columns, int64_t first_column, int64_t last_column,
                int64_t first, int outputs, void* out) {
    constexpr int64_t BYTES = sizeof(Vector) / LANES;
    const char* rows[PACK_OUTPUTS];
    for (int o = 0; o < PACK_OUTPUTS; o++) {
        const int64_t row = first + (o < outputs ? o : outputs - 1);
        rows[o] = static_cast<const char*>(matrix) + row * columns * BYTES;
    }
    for (int64_t c = first_column; c < last_column; c += LANES) {
        const int count = last_column - c < LANES ? static_cast<int>(last_column - c) : LANES;
        for (int v = 0; v < PACK_VECTORS; v++) {
            Vector block[LANES];
#pragma GCC unroll 16
            for (int lane = 0; lane < LANES; lane++) {
                const char* from = rows[v * LANES + lane] + c * BYTES;
                block[lane] = count == LANES ? load_bits<Vector>(from)
                                             : load_bits<Vector>(from, count, BYTES);
            }
            transpose(block);
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++) {
                if (i < count) {
                    const int64_t at = (c - first_column + i) * PACK_OUTPUTS + v * LANES;
                    memcpy(static_cast<char*>(out) + at * BYTES, &block[i], sizeof(Vector));
                }
            }
        }
    }
}

// Memory of a pack of row-major weights: the words of a block, scales and biases.
int64_t pack_bytes(const QuantizedMatmulJob& job) {
    return BLOCK_BYTES + PACK_OUTPUTS * 2 * 2 * (job.I / job.group_size);
}

// Calls f(pack) for every block of a pack of row-major weights, which is interleaved into `memory`.
// During a block, as many bytes of the next pack are prefetched.
template <typename Function>
void for_blocks(const QuantizedMatmulJob& job, int64_t first, int outputs, void* memory,
                const Function& f) {
    const int64_t columns = job.I * job.bits / 32, groups = job.I / job.group_size;
    auto words = static_cast<uint32_t*>(memory);
    auto scales = reinterpret_cast<uint16_t*>(words + BLOCK_WORDS * PACK_OUTPUTS);
    uint16_t* biases = job.biases == nullptr ? nullptr : scales + groups * PACK_OUTPUTS;
    const auto interleave_factors = [&](const uint16_t* factors, uint16_t* out) {
        const auto next = reinterpret_cast<const char*>(factors + (first + PACK_OUTPUTS) * groups);
        for (int64_t byte = 0; byte < PACK_OUTPUTS * groups * 2; byte += 64) {
            __builtin_prefetch(next + byte);
        }
        interleave<Halves>(factors, groups, 0, groups, first, outputs, out);
    };
    interleave_factors(job.scales, scales);
    if (biases != nullptr) {
        interleave_factors(job.biases, biases);
    }
    const int64_t group_words = job.group_size * job.bits / 32;
    for (int64_t word = 0; word < columns; word += BLOCK_WORDS) {
        const int64_t end = columns - word < BLOCK_WORDS ? columns : word + BLOCK_WORDS;
        interleave<Floats>(job.b, columns, word, end, first, outputs, words);
        const uint32_t* later = job.b + (first + PACK_OUTPUTS) * columns + word * PACK_OUTPUTS;
        const auto ahead = reinterpret_cast<intptr_t>(later) - reinterpret_cast<intptr_t>(words);
        f(Pack{&job, scales, biases, word / group_words, end / group_words, words, ahead});
    }
}

// Step 2: unpacks part p, a pair of weights, of one word of each of LANES outputs.
template <int BITS>
struct Integers {
    using Part = Shorts;
    using Sums = PairSums;
    static constexpr int PARTS = 16 / BITS;  // per word
    static constexpr int STEP = 4;           // parts per step: one or two words
    static UnsignedShorts unpack(const uint32_t* words, int p) {
        const UnsignedShorts x = load_bits<UnsignedShorts>(words) >> (BITS * p);
        return p == PARTS - 1 ? x : x & static_cast<uint16_t>((1 << BITS) - 1);
    }
    static Part part(const uint32_t* words, int p) { return (Part)unpack(words, p); }
};
struct FloatingPoint : Integers<4> {
    static Part part(const uint32_t* words, int p) {
        return look_up(E2M1_INTEGERS, unpack(words, p));
    }
};

// Unpacks weights for 8-bit activations. A part is four weights.
template <int BITS>
struct ByteIntegers {
    using Part = Quads;
    using Sums = QuadSums;
    static constexpr int PARTS = 8 / BITS;
    static constexpr int STEP = 8;  // 16-bit sums: 8 · 2 · 127 · 15 < 2¹⁵
    static Part part(const uint32_t* words, int p) {
        const Ints x = load_bits<Ints>(words) >> (BITS * p);
        return (Part)(BITS == 8 ? x : x & 0x0f0f0f0f);
    }
};
struct ByteFloatingPoint : ByteIntegers<4> {
    static constexpr int STEP = 4;  // 4 · 2 · 127 · 24 < 2¹⁵
    static Part part(const uint32_t* words, int p) {
        return look_up(E2M1_INTEGERS, ByteIntegers<4>::part(words, p));
    }
};

#if defined(__ARM_FEATURE_DOTPROD)
// Unpacks 4-bit weights for activations in bytes. A part is eight weights, one word.
template <typename SumsOfBytes>
struct NibbleIntegers {
    using Part = Nibbles;
    using Sums = SumsOfBytes;
    static constexpr int PARTS = 1;
    static constexpr int STEP = 4;
    static Part part(const uint32_t* words, int) {
        return {ByteIntegers<4>::part(words, 0), ByteIntegers<4>::part(words, 1)};
    }
};
template <typename SumsOfBytes>
struct NibbleFloatingPoint : NibbleIntegers<SumsOfBytes> {
    static Nibbles part(const uint32_t* words, int) {
        return {ByteFloatingPoint::part(words, 0), ByteFloatingPoint::part(words, 1)};
    }
};
#endif

// Calls f.operator()<WeightFormat>() for the formats of b and of the activations.
template <typename Function>
inline void with_weight_format(const QuantizedMatmulJob& job, const Function& f) {
#if defined(__ARM_FEATURE_DOTPROD)
    const auto call_nibbles = [&]<typename Sums>() {
        job.biases == nullptr ? f.template operator()<NibbleFloatingPoint<Sums>>()
                              : f.template operator()<NibbleIntegers<Sums>>();
    };
    if (job.bits == 8) {
        f.template operator()<Integers<8>>();
    } else if (multiplies_high_low_bytes(job)) {
        call_nibbles.template operator()<HighLowSums>();
    } else {
        call_nibbles.template operator()<QuadSums>();
    }
#else
    const auto call = [&]<typename OfShorts, typename OfBytes>() {
#if defined(__AVX2__)
        if (multiplies_bytes(job)) {
            f.template operator()<OfBytes>();
            return;
        }
#endif
        // With BF16, quantized_matmul_avx512.cpp multiplies 4-bit weights by 16-bit activations.
        if constexpr (!USES_BF16_DOT || OfShorts::PARTS == Integers<8>::PARTS) {
            f.template operator()<OfShorts>();
        }
    };
    if (job.biases == nullptr) {
        call.template operator()<FloatingPoint, ByteFloatingPoint>();
    } else if (job.bits == 4) {
        call.template operator()<Integers<4>, ByteIntegers<4>>();
    } else {
        call.template operator()<Integers<8>, ByteIntegers<8>>();
    }
#endif
}

// A group's weights, unpacked on each use.
template <typename WeightFormat>
struct PackedGroup {
    using Format = WeightFormat;
    static constexpr int WORDS = Format::STEP / Format::PARTS;  // per step
    const uint32_t* words;
    int64_t ahead;

    // Part i of a step, for vector v of outputs.
    typename Format::Part part(int64_t step, int i, int v) const {
        const int64_t word = step * WORDS + i / Format::PARTS;
        return Format::part(words + word * PACK_OUTPUTS + v * LANES, i % Format::PARTS);
    }
    // Prefetches as many bytes as a step has. The hardware prefetcher stops at the end of a page.
    __attribute__((always_inline)) void prefetch(int64_t step) const {
        const char* line = reinterpret_cast<const char*>(words + step * WORDS * PACK_OUTPUTS);
        for (int64_t byte = 0; byte < WORDS * PACK_OUTPUTS * 4; byte += 64) {
            __builtin_prefetch(line + ahead + byte);
        }
    }
};

// A group's weights, unpacked in advance.
template <typename WeightFormat>
struct UnpackedGroup {
    using Format = WeightFormat;
    const typename Format::Part (*parts)[PACK_VECTORS];

    typename Format::Part part(int64_t step, int i, int v) const {
        return parts[step * Format::STEP + i][v];
    }
    void prefetch(int64_t) const {}
};

template <typename WeightFormat>
void unpack_group(const PackedGroup<WeightFormat>& group, int64_t parts,
                  typename WeightFormat::Part (*out)[PACK_VECTORS]) {
    constexpr int STEP = WeightFormat::STEP;
    for (int64_t step = 0; step < parts / STEP; step++) {
        group.prefetch(step);
#pragma GCC unroll 8
        for (int i = 0; i < STEP; i++) {
#pragma GCC unroll 4
            for (int v = 0; v < PACK_VECTORS; v++) {
                out[step * STEP + i][v] = group.part(step, i, v);
            }
        }
    }
}

// --- matmul -------------------------------------------------------------------------------------

// Step 4 for ROWS rows: `totals` is rows × PACK_VECTORS.
template <int ROWS, typename Sums>
inline void add_group(const Pack& pack, int64_t g, const Factors* factors,
                      const Sums (&sums)[ROWS][PACK_VECTORS], Floats* totals) {
#pragma GCC unroll 4
    for (int v = 0; v < PACK_VECTORS; v++) {
        Floats scale = pack.factor(pack.scales, g, v), bias;
        if (pack.biases != nullptr) {
            bias = pack.factor(pack.biases, g, v);
        } else {
            make_affine(&scale, &bias, 1);
        }
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
__attribute__((noinline)) void multiply_group(const Pack& pack, const Weights& weights,
                                              const Activations& a, int64_t g, int64_t row,
                                              Floats* totals) {
    using Format = typename Weights::Format;
    using Sums = typename Format::Sums;
    constexpr int STEP = Format::STEP, WORDS = PartActivations<Sums>::WORDS;
    constexpr int CHAINS = Sums::CHAINS > ROWS ? Sums::CHAINS / ROWS : 1;  // per output
    const int64_t row_words = a.row_words;
    const Word* words = a.words(g, row);
    Sums chains[CHAINS][ROWS][PACK_VECTORS] = {};
    for (int64_t step = 0; step < row_words / (STEP * WORDS); step++) {
        weights.prefetch(step);
#pragma GCC unroll 8
        for (int i = 0; i < STEP; i++) {
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
    add_group<ROWS>(pack, g, a.factors + g * a.R + row, chains[0], totals);
}

// Multiplies few rows: every tile of rows unpacks all weights of the pack again.
template <typename WeightFormat>
void multiply_few_rows(const Pack& pack, const Activations& a, int64_t first_row, int64_t rows,
                       Floats* totals) {
    for_tiles<ROW_TILE>(rows, [&]<int ROWS>(int64_t row) {
        for (int64_t g = pack.first_group; g < pack.last_group; g++) {
            multiply_group<ROWS>(pack, PackedGroup<WeightFormat>{pack.group(g), pack.ahead}, a, g,
                                 first_row + row, totals + row * PACK_VECTORS);
        }
    });
}

// Multiplies many rows: each group is unpacked once for all tiles.
template <typename WeightFormat>
void multiply_many_rows(const Pack& pack, const Activations& a, int64_t first_row, int64_t rows,
                        Floats* totals) {
    constexpr int WORDS = PartActivations<typename WeightFormat::Sums>::WORDS;
    typename WeightFormat::Part parts[MAX_GROUP / 2][PACK_VECTORS];
    for (int64_t g = pack.first_group; g < pack.last_group; g++) {
        unpack_group(PackedGroup<WeightFormat>{pack.group(g), pack.ahead}, a.row_words / WORDS,
                     parts);
        for_tiles<ROW_TILE>(rows, [&]<int ROWS>(int64_t row) {
            multiply_group<ROWS>(pack, UnpackedGroup<WeightFormat>{parts}, a, g, first_row + row,
                                 totals + row * PACK_VECTORS);
        });
    }
}

// Rounds and stores output rows of a pack that starts at output `first`. The totals of a float16
// row's two rows of integers are added first.
void store_rows(const QuantizedMatmulJob& job, int64_t first, int outputs, int64_t first_row,
                int64_t rows, const Floats* totals) {
    const int integer_rows = rows_of_integers(job);
    int64_t at = first_row / integer_rows * job.O + first;
    for (int64_t r = 0; r < rows; r += integer_rows, at += job.O) {
        for (int v = 0; v < PACK_VECTORS && v * LANES < outputs; v++) {
            const Floats* total = totals + r * PACK_VECTORS + v;
            const Floats x = integer_rows == 2 ? total[0] + total[PACK_VECTORS] : total[0];
            const int left = outputs - v * LANES;
            if (left >= LANES) {  // a copy of constant length is one instruction
                store(job.out, at + v * LANES, job.format, x);
            } else {
                store(job.out, at + v * LANES, job.format, x, left);
            }
        }
    }
}

// totals += the products of a pack and `rows` rows of integers, starting at `first_row`.
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
    return job.M * rows_of_integers(job) * (job.I * bytes + factors);
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
    const int64_t block = activations.R < BLOCK_ROWS ? activations.R : BLOCK_ROWS;
    const int64_t vectors = block * PACK_VECTORS;
    const int64_t bytes = job.prepacked ? 0 : pack_bytes(job);
    Floats* totals = reinterpret_cast<Floats*>(thread_scratch(vectors * LANES + (bytes + 3) / 4));
    for (int64_t row = 0; row < activations.R; row += block) {
        const int64_t rows = activations.R - row < block ? activations.R - row : block;
        for (int64_t o = first_output; o < last_output; o += PACK_OUTPUTS) {
            const int64_t left = last_output - o;
            const int outputs = left < PACK_OUTPUTS ? static_cast<int>(left) : PACK_OUTPUTS;
            for (int64_t i = 0; i < rows * PACK_VECTORS; i++) {
                totals[i] = Floats{};
            }
            const auto multiply_rows = [&](const Pack& pack) {
                multiply(pack, activations, row, rows, totals);
            };
            if (job.prepacked) {
                multiply_rows(prepacked(job, o));
            } else {
                for_blocks(job, o, outputs, totals + vectors, multiply_rows);
            }
            store_rows(job, o, outputs, row, rows, totals);
        }
    }
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_fixed_point = {scratch_bytes, prepare, run,
                                                            /*prepack_rows=*/PACK_OUTPUTS};

}  // namespace tiny_llm_ext::TINY_LLM_ISA
