// quantized_matmul for AVX2 and NEON, which multiply no bfloat16 numbers but do multiply integers:
// the activations become 16-bit integers too, and every sum over a group is exact.
//
// 1. prepare: a group of activations a[i] becomes step · A[i], |A[i]| < 2¹⁵ integers. The step is
//    2^(e−14) where 2^e ≤ max |a| < 2^(e+1): a power of two, so that nothing but A is rounded.
// 2. unpack: a byte of weights widens to a 16-bit lane: one 8-bit number, or two 4-bit ones.
// 3. multiply: Σ q·A in 32 bits; 255 · 32767 · 128 < 2³¹. As integers add up to the same in any
//    order, one row alone may unpack as it goes, and many rows share weights that were unpacked.
// 4. total += (scale · step) · Σ q·A + bias · (step · Σ A), in float32, group after group.
//
// What it costs in precision. |a − step·A| ≤ step/2 ≤ 2⁻¹⁵ · max |a|, and 0 for a bfloat16 number
// (8 significant bits) that is at least 2⁻⁷ of the largest of its group. The largest of 128 is at
// most √128 times their root mean square, so the activations are off by less than 2⁻¹¹ of that,
// where rounding the weights to bfloat16 would be off by up to 2⁻⁹. It is the same A that meets q
// and the bias, so this error is one of Σ w·a and not of its two larger halves. float16 numbers (11
// bits) get a second row of integers for what the first one leaves, with steps 2¹⁵ times smaller:
// |error| ≤ 2⁻³⁰ · max |a|.
//
// A group with NaN or infinity makes its row NaN. Steps are at least 2⁻¹¹¹.
#include <stdlib.h>

#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

typedef int16_t Shorts __attribute__((vector_size(LANES * 4), may_alias));
typedef uint8_t Bytes __attribute__((vector_size(LANES * 2)));

namespace {

constexpr int SHORTS = 2 * LANES;  // 16-bit numbers in a vector
constexpr int MAX_GROUP = 128;
constexpr int DIRECT_ROWS = 2;  // up to here, unpacking as we go is cheaper
constexpr int64_t CACHE_BYTES = 256 * 1024;

// --- what vectors of integers do ----------------------------------------------------------------

/// sums + a · b, the products of two 16-bit lanes to a 32-bit one; which two is left open.
inline Ints multiply_add(Ints sums, Shorts a, Shorts b) {
#if defined(__AVX2__)
    return sums + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__aarch64__)
    const int32x4_t low = vmlal_s16((int32x4_t)sums, vget_low_s16((int16x8_t)a),  //
                                    vget_low_s16((int16x8_t)b));
    return (Ints)vmlal_high_s16(low, (int16x8_t)a, (int16x8_t)b);
#endif
}

/// Lane o of the result is the sum of all lanes of x[o].
inline Ints sum_each(const Ints (&x)[LANES]) {
#if defined(__AVX2__)
    auto pairs = [&](int i) __attribute__((always_inline)) {
        return _mm256_hadd_epi32((__m256i)x[i], (__m256i)x[i + 1]);
    };
    const __m256i low = _mm256_hadd_epi32(pairs(0), pairs(2));
    const __m256i high = _mm256_hadd_epi32(pairs(4), pairs(6));
    return (Ints)_mm256_add_epi32(_mm256_permute2x128_si256(low, high, 0x20),
                                  _mm256_permute2x128_si256(low, high, 0x31));
#elif defined(__aarch64__)
    return (Ints)vpaddq_s32(vpaddq_s32((int32x4_t)x[0], (int32x4_t)x[1]),
                            vpaddq_s32((int32x4_t)x[2], (int32x4_t)x[3]));
#endif
}

/// a₀ b₀ a₁ b₁ …: the first LANES of them, and the rest.
inline void interleave(Halves a, Halves b, Halves& first, Halves& second) {
#if defined(__AVX2__)
    first = (Halves)_mm_unpacklo_epi16((__m128i)a, (__m128i)b);
    second = (Halves)_mm_unpackhi_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    first = (Halves)vzip1_u16((uint16x4_t)a, (uint16x4_t)b);
    second = (Halves)vzip2_u16((uint16x4_t)a, (uint16x4_t)b);
#endif
}

/// LANES×LANES numbers: interleaving the upper with the lower half, log₂ LANES times.
inline void transpose(Halves (&x)[LANES]) {
#pragma GCC unroll 3
    for (int size = 1; size < LANES; size *= 2) {
        Halves y[LANES];
#pragma GCC unroll 4
        for (int i = 0; i < LANES / 2; i++) {
            interleave(x[i], x[i + LANES / 2], y[2 * i], y[2 * i + 1]);
        }
        memcpy(x, y, sizeof x);
    }
}

// --- activations --------------------------------------------------------------------------------

// A row of float16 is the sum of two rows of integers.
inline int rows_of_integers(Format format) { return format == Format::float16 ? 2 : 1; }

// What a group of a row of integers is multiplied by.
struct Factors {
    float step;
    float sum;  // step · Σ A
};

// The prepared activations: R = M · rows_of_integers rows, a group of all of them after the other.
struct Activations {
    int64_t R, group_size;
    int16_t* integers;  // groups × R × group_size
    Factors* factors;   // groups × R

    Activations(const QuantizedMatmulJob& job, void* scratch)
        : R(job.M * rows_of_integers(job.format)),
          group_size(job.group_size),
          integers(static_cast<int16_t*>(scratch)),
          factors(reinterpret_cast<Factors*>(integers + R * job.I)) {}

    const Shorts* group(int64_t g, int64_t r) const {
        return reinterpret_cast<const Shorts*>(integers + (g * R + r) * group_size);
    }
};

// Where unpacking leaves element i of a group. Bytes with two 4-bit numbers unpack to a vector of
// the even ones and a vector of the odd ones.
inline int place_of(int i, int bits) {
    const int run = i / (2 * SHORTS) * (2 * SHORTS);
    return bits == 8 ? i : run + i % 2 * SHORTS + (i - run) / 2;
}

// The exponent of the largest magnitude, as float32 stores it: 255 with NaN or infinity among them.
inline int largest_exponent(const Floats* a, int count) {
    Ints largest = {};
    for (int v = 0; v < count; v++) {
        const Ints magnitude = as_ints(a[v]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    int32_t bits = 0;
    for (int i = 0; i < LANES; i++) {
        bits = largest[i] > bits ? largest[i] : bits;
    }
    return bits >> 23;
}

// One row of integers for a group a[0 … group_size), in units of the step; what it leaves of a is
// written back to a.
void round_group(const QuantizedMatmulJob& job, Floats* a, int16_t* integers, float step,
                 Factors& factors) {
    const Floats magic = splat(12582912.0f);  // 1.5 · 2²³: adding it rounds to a whole number
    Ints whole[MAX_GROUP / LANES], sums = {};
    for (int v = 0; v < job.group_size / LANES; v++) {
        const Floats shifted = a[v] + magic;
        whole[v] = as_ints(shifted) - as_ints(magic);
        sums += whole[v];
        a[v] -= shifted - magic;
    }
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) {
        sum += sums[i];
    }
    factors = {step, step * static_cast<float>(sum)};
    for (int i = 0; i < job.group_size; i++) {
        integers[place_of(i, job.bits)] = static_cast<int16_t>(whole[i / LANES][i % LANES]);
    }
}

void prepare_group(const QuantizedMatmulJob& job, const Activations& to, int64_t m, int64_t g) {
    Floats a[MAX_GROUP / LANES];
    const int count = job.group_size / LANES;
    for (int v = 0; v < count; v++) {
        a[v] = load(job.a, m * job.I + g * job.group_size + v * LANES, job.format);
    }
    int exponent = largest_exponent(a, count);
    const bool finite = exponent < 255;
    exponent = exponent < 30 ? 30 : exponent;  // the steps of both rows are normal numbers
    const float inverse = bits_to_float(static_cast<uint32_t>(254 + 14 - exponent) << 23);
    float step = bits_to_float(static_cast<uint32_t>(exponent - 14) << 23);
    for (int v = 0; v < count; v++) {
        a[v] = finite ? a[v] * inverse : Floats{};
    }
    const int rows = rows_of_integers(job.format);
    for (int row = 0; row < rows; row++) {
        const int64_t at = g * to.R + m * rows + row;
        round_group(job, a, to.integers + at * job.group_size, step, to.factors[at]);
        if (!finite) {
            to.factors[at] = {__builtin_nanf(""), __builtin_nanf("")};
        }
        step *= 0x1p-15f;
        for (int v = 0; v < count; v++) {
            a[v] *= 0x1p15f;
        }
    }
}

// --- weights ------------------------------------------------------------------------------------

// LANES outputs from `first`; in the last panel some of them may not exist.
struct Panel {
    const QuantizedMatmulJob* job;
    int64_t first;
    int outputs;
    Floats* scales;  // groups, one output a lane
    Floats* biases;

    // Bytes of output o's weights from a group on. An output that does not exist repeats the last.
    const uint8_t* bytes(int o, int64_t g) const {
        const int64_t row = first + (o < outputs ? o : outputs - 1);
        return reinterpret_cast<const uint8_t*>(job->b) +
               (row * job->I + g * job->group_size) * job->bits / 8;
    }
};

// O × groups of 16-bit numbers -> groups vectors of float32, one output a lane.
void load_by_group(const Panel& panel, const uint16_t* in, Floats* out) {
    const int64_t groups = panel.job->I / panel.job->group_size;
    for (int64_t g = 0; g < groups; g += LANES) {
        const int count = groups - g < LANES ? static_cast<int>(groups - g) : LANES;
        Halves block[LANES] = {};
        for (int o = 0; o < panel.outputs; o++) {
            const uint16_t* row = in + (panel.first + o) * groups + g;
            block[o] = count == LANES ? load_bits<Halves>(row) : load_bits<Halves>(row, count, 2);
        }
        transpose(block);
        for (int i = 0; i < count; i++) {
            out[g + i] = panel.job->scale_format == Format::float16 ? widen_float16(block[i])
                                                                    : widen_bfloat16(block[i]);
        }
    }
}

// Step 2: the next 1 or 2 vectors of weights.
template <int BITS>
inline void unpack(const uint8_t* bytes, Shorts* weights) {
    const Shorts wide = __builtin_convertvector(load_bits<Bytes>(bytes), Shorts);
    weights[0] = BITS == 8 ? wide : wide & 15;
    if (BITS == 4) {
        weights[1] = wide >> 4;
    }
}

// --- products -----------------------------------------------------------------------------------

// Step 3 for one row of integers: Σ q·A of a group, unpacking as we go.
template <int BITS>
inline Ints dot_direct(const Panel& panel, int64_t g, const Shorts* a) {
    constexpr int PARTS = 8 / BITS;  // vectors from SHORTS bytes
    const int64_t row_bytes = panel.job->I * BITS / 8;
    const int64_t ahead = LANES * row_bytes;  // the same place of the next panel
    const uint8_t* rows[LANES];
    Ints sums[LANES];
#pragma GCC unroll 8
    for (int o = 0; o < LANES; o++) {
        rows[o] = panel.bytes(o, g);
        sums[o] = Ints{};
        __builtin_prefetch(rows[o] + ahead);
        if (BITS == 8) {
            __builtin_prefetch(rows[o] + ahead + 64);
        }
    }
    const int bytes = panel.job->group_size * BITS / 8;
    for (int i = 0; i < bytes; i += SHORTS, a += PARTS) {
#pragma GCC unroll 8
        for (int o = 0; o < LANES; o++) {
            Shorts weights[PARTS];
            unpack<BITS>(rows[o] + i, weights);
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++) {
                sums[o] = multiply_add(sums[o], a[part], weights[part]);
            }
        }
    }
    return sum_each(sums);
}

// The same with weights unpacked before: vectors × LANES outputs.
inline Ints dot_unpacked(const Shorts (*weights)[LANES], int vectors, const Shorts* a) {
    Ints sums[LANES] = {};
    for (int v = 0; v < vectors; v++) {
#pragma GCC unroll 8
        for (int o = 0; o < LANES; o++) {
            sums[o] = multiply_add(sums[o], a[v], weights[v][o]);
        }
    }
    return sum_each(sums);
}

// Step 4.
inline Floats add_group(Floats total, Ints dot, const Panel& panel, int64_t g, Factors factors) {
    const Floats products = __builtin_convertvector(dot, Floats);
    total = fma(panel.scales[g] * factors.step, products, total);
    return fma(panel.biases[g], splat(factors.sum), total);
}

template <int BITS>
void add_group_to_rows(const Panel& panel, const Activations& a, int64_t g, int64_t first_row,
                       int64_t rows, Floats* totals) {
    const Factors* factors = a.factors + g * a.R + first_row;
    if (rows <= DIRECT_ROWS) {
        for (int64_t r = 0; r < rows; r++) {
            const Ints dot = dot_direct<BITS>(panel, g, a.group(g, first_row + r));
            totals[r] = add_group(totals[r], dot, panel, g, factors[r]);
        }
        return;
    }
    constexpr int PARTS = 8 / BITS;
    Shorts weights[MAX_GROUP / SHORTS][LANES];
    const int vectors = panel.job->group_size / SHORTS;
    for (int o = 0; o < LANES; o++) {
        const uint8_t* bytes = panel.bytes(o, g);
        for (int v = 0; v < vectors; v += PARTS) {
            Shorts parts[PARTS];
            unpack<BITS>(bytes + v / PARTS * SHORTS, parts);
            for (int part = 0; part < PARTS; part++) {
                weights[v + part][o] = parts[part];
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        const Ints dot = dot_unpacked(weights, vectors, a.group(g, first_row + r));
        totals[r] = add_group(totals[r], dot, panel, g, factors[r]);
    }
}

// One panel of outputs for some rows of integers.
void run_panel(const Panel& panel, const Activations& a, int64_t first_row, int64_t rows,
               Floats* totals) {
    const QuantizedMatmulJob& job = *panel.job;
    for (int64_t r = 0; r < rows; r++) {
        totals[r] = Floats{};
    }
    for (int64_t g = 0; g < job.I / job.group_size; g++) {
        (job.bits == 4 ? add_group_to_rows<4> : add_group_to_rows<8>)(panel, a, g, first_row, rows,
                                                                      totals);
    }
    const int together = rows_of_integers(job.format);
    for (int64_t r = 0; r < rows; r += together) {
        const Floats total = together == 2 ? totals[r] + totals[r + 1] : totals[r];
        store(job.out, (first_row + r) / together * job.O + panel.first, job.format, total,
              panel.outputs);
    }
}

// --- the kernel ---------------------------------------------------------------------------------

int64_t scratch_bytes(const QuantizedMatmulJob& job) {
    const int64_t factors = job.I / job.group_size * static_cast<int64_t>(sizeof(Factors));
    return job.M * rows_of_integers(job.format) * (job.I * 2 + factors);
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
    const int64_t groups = job.I / job.group_size;
    int64_t block = CACHE_BYTES / (job.I * 2) / 2 * 2;  // rows of integers that stay in the cache
    block = block < 16 ? 16 : block;
    block = block < activations.R ? block : activations.R;
    auto memory =
        static_cast<Floats*>(aligned_alloc(sizeof(Floats), (2 * groups + block) * sizeof(Floats)));
    Panel panel = {&job, 0, 0, memory, memory + groups};
    for (int64_t row = 0; row < activations.R; row += block) {
        const int64_t rows = activations.R - row < block ? activations.R - row : block;
        for (int64_t o = first_output; o < last_output; o += LANES) {
            panel.first = o;
            panel.outputs = last_output - o < LANES ? static_cast<int>(last_output - o) : LANES;
            load_by_group(panel, job.scales, panel.scales);
            load_by_group(panel, job.biases, panel.biases);
            run_panel(panel, activations, row, rows, memory + 2 * groups);
        }
    }
    free(memory);
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_fixed_point = {scratch_bytes, prepare, run};

}  // namespace tiny_llm_ext::TINY_LLM_ISA
