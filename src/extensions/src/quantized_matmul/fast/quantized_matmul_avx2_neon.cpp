// quantized_matmul for AVX2 and NEON, which have no bfloat16 products but integer ones: activations
// become 16-bit integers, too, and every sum over a group is exact.
//
// 1. prepare: a group of activations a[i] becomes step · A[i] with integers |A[i]| < 2¹⁵. The step
//    is a power of two, so only A is rounded (fixed_point_rounding.h).
// 2. unpack: a byte of weights widens to a 16-bit lane: one 8-bit value, or two 4-bit ones.
// 3. multiply: Σ q·A in 32 bits; 255 · 32767 · 128 < 2³¹. Integer sums do not depend on the order,
//    so a single row may unpack on the fly while many rows share unpacked weights.
// 4. total += (scale · step) · Σ q·A + bias · (step · Σ A), in float32, group after group.
//
// Error bound. |a − step·A| ≤ step/2 ≤ 1.004 · 2⁻¹⁵ · max |a|, and 0 for a bfloat16 value (8
// significant bits) above 2⁻⁷ of its group's maximum. The maximum of 128 values is at most √128
// times their root mean square, so the activations' error is less than 2⁻¹¹ of that, whereas
// rounding the weights to bfloat16 has errors up to 2⁻⁹. The same A multiplies q and the bias, so
// the error is relative to Σ w·a and not to its two larger terms. float16 (11 bits) uses a second
// row of integers for the remainder, with steps 2¹⁵ times smaller: |error| ≤ 1.004 · 2⁻³⁰ · max
// |a|.
//
// A group with NaN or infinity makes its row NaN. Steps are at least 2⁻¹¹¹.
#include <stdlib.h>

#include "common/simd.h"
#include "src/quantized_matmul/fast/fixed_point_activations.h"
#include "src/quantized_matmul/fast/fixed_point_vectors.h"
#include "src/quantized_matmul/fast/floating_point_weights.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int DIRECT_ROWS = 2;               // up to here, unpacking on the fly is cheaper
constexpr int64_t CACHE_BYTES = 256 * 1024;  // of activations, reused by every panel
constexpr int64_t FAR_AHEAD = 16 * 1024;     // prefetch distance in bytes of weights

// --- weights ------------------------------------------------------------------------------------

// LANES outputs, starting at `first`; the last panel may have fewer.
struct FixedPointPanel {
    const QuantizedMatmulJob* job;
    int64_t first;
    int outputs;
    Floats* scales;  // groups, one output per lane
    Floats* biases;
    const uint8_t* rows[LANES];  // of weights; lanes past the last output repeat its row
};

// Transposes O × groups 16-bit values to groups vectors of float32, one output per lane.
void load_by_group(const FixedPointPanel& panel, const uint16_t* in, Floats* out) {
    const int64_t groups = panel.job->I / panel.job->group_size;
    const int last = panel.outputs - 1;
    in += panel.first * groups;
    for (int64_t g = 0; g < groups; g += LANES) {
        const int count = groups - g < LANES ? static_cast<int>(groups - g) : LANES;
        Halves block[LANES];
        if (count == LANES && last == LANES - 1) {
#pragma GCC unroll 8
            for (int o = 0; o < LANES; o++) {
                block[o] = load_bits<Halves>(in + o * groups + g);
            }
        } else {
            for (int o = 0; o < LANES; o++) {
                block[o] = load_bits<Halves>(in + (o < last ? o : last) * groups + g, count, 2);
            }
        }
        transpose(block);
        const bool narrow = panel.job->scale_format == Format::float16;
        Floats* to = out + g;  // padded to a multiple of LANES
#pragma GCC unroll 8
        for (int i = 0; i < LANES; i++) {
            to[i] = narrow ? widen_float16(block[i]) : widen_bfloat16(block[i]);
        }
    }
}

// Step 2: unpacks SHORTS bytes of weights to one or two vectors.
struct EightBits {
    static constexpr int PARTS = 1;
    static void unpack(const uint8_t* bytes, Shorts* weights) { weights[0] = load_bytes(bytes); }
};
struct FourBits {
    static constexpr int PARTS = 2;
    static void unpack(const uint8_t* bytes, Shorts* weights) {
        const Shorts wide = load_bytes(bytes);
        weights[0] = wide & 15;
        weights[1] = wide >> 4;
    }
};
struct FloatingPoint : FourBits {
    static void unpack(const uint8_t* bytes, Shorts* weights) {
        FourBits::unpack(bytes, weights);
        weights[0] = look_up(TWICE_E2M1, weights[0]) + OFFSET;
        weights[1] = look_up(TWICE_E2M1, weights[1]) + OFFSET;
    }
};

// Prefetches weights of later panels while SHORTS bytes of each row, starting at byte i, are used.
//
// A panel's rows are LANES separate streams, read side by side, which the hardware prefetcher does
// not recognize. Therefore the next panel's bytes are prefetched in address order, as many at a
// time as are used. Farther ahead, bytes are prefetched into the L2 cache, which allows more
// outstanding requests than L1.
template <typename Numbers>
__attribute__((always_inline)) inline void fetch_ahead(const FixedPointPanel& panel, int64_t i) {
    const uint8_t* next_panel = panel.rows[0] + LANES * panel.job->I / Numbers::PARTS;
    for (int line = 0; line < LANES * SHORTS; line += 64) {
        __builtin_prefetch(next_panel + i * LANES + line);
        __builtin_prefetch(next_panel + i * LANES + line + FAR_AHEAD, 0, 2);
    }
}

// --- products -----------------------------------------------------------------------------------

// Step 3 for one row of integers: Σ q·A of a group, unpacking on the fly.
template <typename Numbers>
inline Ints dot_direct(const FixedPointPanel& panel, int64_t g, const Shorts* a) {
    constexpr int PARTS = Numbers::PARTS;
    const int64_t bytes = panel.job->group_size / PARTS;
    Ints sums[LANES] = {};
    for (int64_t i = g * bytes; i < (g + 1) * bytes; i += SHORTS, a += PARTS) {
        fetch_ahead<Numbers>(panel, i);
#pragma GCC unroll 8
        for (int o = 0; o < LANES; o++) {
            Shorts weights[PARTS];
            Numbers::unpack(panel.rows[o] + i, weights);
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; part++) {
                sums[o] = multiply_add(sums[o], a[part], weights[part]);
            }
        }
    }
    return sum_each(sums);
}

// Step 3 with unpacked weights: vectors × LANES outputs.
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
inline Floats add_group(Floats total, Ints dot, const FixedPointPanel& panel, int64_t g,
                        Factors factors) {
    const Floats products = __builtin_convertvector(dot, Floats);
    total = fma(panel.scales[g] * splat(factors.step), products, total);
    return fma(panel.biases[g], splat(factors.sum), total);
}

template <typename Numbers>
void few_rows(const FixedPointPanel& panel, const Activations& a, int64_t first_row, int64_t rows,
              Floats* totals) {
    const int64_t groups = panel.job->I / panel.job->group_size;
    for (int64_t g = 0; g < groups; g++) {
        const Factors* factors = a.factors + g * a.R + first_row;
        for (int64_t r = 0; r < rows; r++) {
            const Ints dot = dot_direct<Numbers>(panel, g, a.group(g, first_row + r));
            totals[r] = add_group(totals[r], dot, panel, g, factors[r]);
        }
    }
}

// Unpacked weights of one group of a panel: vectors × LANES outputs.
template <typename Numbers>
void unpack_group(const FixedPointPanel& panel, int64_t g, Shorts (*weights)[LANES]) {
    constexpr int PARTS = Numbers::PARTS;
    const int64_t bytes = panel.job->group_size / PARTS;
    for (int64_t i = 0; i < bytes; i += SHORTS) {
        fetch_ahead<Numbers>(panel, g * bytes + i);
#pragma GCC unroll 8
        for (int o = 0; o < LANES; o++) {
            Shorts parts[PARTS];
            Numbers::unpack(panel.rows[o] + g * bytes + i, parts);
            for (int part = 0; part < PARTS; part++) {
                weights[i / SHORTS * PARTS + part][o] = parts[part];
            }
        }
    }
}

template <typename Numbers>
void many_rows(const FixedPointPanel& panel, const Activations& a, int64_t first_row, int64_t rows,
               Floats* totals) {
    const int64_t groups = panel.job->I / panel.job->group_size;
    Shorts weights[MAX_GROUP / SHORTS][LANES];
    for (int64_t g = 0; g < groups; g++) {
        unpack_group<Numbers>(panel, g, weights);
        const Factors* factors = a.factors + g * a.R + first_row;
        for (int64_t r = 0; r < rows; r++) {
            const Ints dot = dot_unpacked(weights, static_cast<int>(a.group_size) / SHORTS,
                                          a.group(g, first_row + r));
            totals[r] = add_group(totals[r], dot, panel, g, factors[r]);
        }
    }
}

// Computes one panel of outputs for some rows of integers.
void run_panel(const FixedPointPanel& panel, const Activations& a, int64_t first_row, int64_t rows,
               Floats* totals) {
    const QuantizedMatmulJob& job = *panel.job;
    for (int64_t r = 0; r < rows; r++) {
        totals[r] = Floats{};
    }
    const auto multiply = [&]<typename Numbers>() {
        const auto run = rows <= DIRECT_ROWS ? few_rows<Numbers> : many_rows<Numbers>;
        run(panel, a, first_row, rows, totals);
    };
    if (job.biases == nullptr) {
        multiply.template operator()<FloatingPoint>();
    } else if (job.bits == 4) {
        multiply.template operator()<FourBits>();
    } else {
        multiply.template operator()<EightBits>();
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
    const int64_t groups = (job.I / job.group_size + LANES - 1) / LANES * LANES;
    int64_t block = CACHE_BYTES / (job.I * 2) / 2 * 2;  // rows of integers per cache block
    block = block < 16 ? 16 : block;
    block = block < activations.R ? block : activations.R;
    auto memory =
        static_cast<Floats*>(aligned_alloc(sizeof(Floats), (2 * groups + block) * sizeof(Floats)));
    const auto weights = reinterpret_cast<const uint8_t*>(job.b);
    FixedPointPanel panel = {&job, 0, 0, memory, memory + groups, {}};
    for (int64_t row = 0; row < activations.R; row += block) {
        const int64_t rows = activations.R - row < block ? activations.R - row : block;
        for (int64_t o = first_output; o < last_output; o += LANES) {
            panel.first = o;
            panel.outputs = last_output - o < LANES ? static_cast<int>(last_output - o) : LANES;
            for (int i = 0; i < LANES; i++) {
                const int64_t existing = o + (i < panel.outputs ? i : panel.outputs - 1);
                panel.rows[i] = weights + existing * job.I * job.bits / 8;
            }
            load_by_group(panel, job.scales, panel.scales);
            if (job.biases != nullptr) {
                load_by_group(panel, job.biases, panel.biases);
            } else {
                make_affine(panel.scales, panel.biases, groups);
            }
            run_panel(panel, activations, row, rows, memory + 2 * groups);
        }
    }
    free(memory);
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_avx2_neon = {scratch_bytes, prepare, run,
                                                          /*prepack_rows=*/0};

}  // namespace tiny_llm_ext::TINY_LLM_ISA
