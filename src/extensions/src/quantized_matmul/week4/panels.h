// Multiplies many rows of activations by one panel of weights at a time. Shared by the two kernels
// of the course's day 4.4 (quantized_matmul_panels, quantized_matmul_pairs).
//
// PACK_ROWS outputs of one group are unpacked into a panel, which stays in the L1 cache while one
// tile of rows after another multiplies with it:
//
//     totals[m, n] += scale[n] · Σ_i q[n, i] · a[m, i]  +  bias[n] · Σ_i a[m, i]
//
// The kernel defines the panel's layout and the multiplication of a tile. It is a class `Kernel`
// with
//
//     Element                             element type of a panel
//     unpack<bits>(words, group_size, panel)
//     products<rows>(job, a, m, g, panel)  of group g and rows m … m + rows − 1
#pragma once

#include "common/simd.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"
#include "src/quantized_matmul/week4/widened_rows.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

// Rows computed together: their sums, VECTORS each, must fit the registers, 32 on AVX-512 and NEON,
// 16 on AVX2.
constexpr int TILE_ROWS = LANES == 16 ? 8 : LANES == 8 ? 3 : 2;

/// Sums of a tile: VECTORS vectors of outputs per row.
template <int rows>
struct TileSums {
    Floats sums[rows][VECTORS];
};

/// Buffers shared by all panels of a job.
struct WidenedRows {
    const float* a;     // M × I
    const float* sums;  // M × (I/group_size): group sums
    float* totals;      // M × PACK_ROWS
};

// Adds a group's products to the totals of rows m … m + rows − 1.
template <typename Kernel, int rows>
void add_tile(const QuantizedMatmulJob& job, const WidenedRows& widened, int64_t m, int64_t g,
              const typename Kernel::Element* panel, const Floats* scales, const Floats* biases) {
    const TileSums<rows> products = Kernel::template products<rows>(job, widened.a, m, g, panel);
    for (int row = 0; row < rows; row++) {
        const Floats group_sum = splat(widened.sums[(m + row) * (job.I / job.group_size) + g]);
        for (int v = 0; v < VECTORS; v++) {
            const int64_t offset = (m + row) * PACK_ROWS + v * LANES;
            Floats total = load(widened.totals, offset, Format::float32);
            total = fma(scales[v], products.sums[row][v], total);
            total = fma(biases[v], group_sum, total);
            store(widened.totals, offset, Format::float32, total);
        }
    }
}

// Adds group g to the totals of all rows: TILE_ROWS at a time, then the remainder one by one.
template <typename Kernel>
void add_panel(const QuantizedMatmulJob& job, const WidenedRows& widened, int64_t first, int64_t g,
               const typename Kernel::Element* panel) {
    Floats scales[VECTORS], biases[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
        const int64_t offset = first * (job.I / job.group_size) + g * PACK_ROWS + v * LANES;
        scales[v] = load(job.scales, offset, job.scale_format);
        biases[v] = load(job.biases, offset, job.scale_format);
    }
    int64_t m = 0;
    for (; m + TILE_ROWS <= job.M; m += TILE_ROWS) {
        add_tile<Kernel, TILE_ROWS>(job, widened, m, g, panel, scales, biases);
    }
    for (; m < job.M; m++) {
        add_tile<Kernel, 1>(job, widened, m, g, panel, scales, biases);
    }
}

// Computes outputs first … first + PACK_ROWS − 1 of all rows.
template <typename Kernel>
void panel_block(const QuantizedMatmulJob& job, const WidenedRows& widened, int64_t first,
                 typename Kernel::Element* panel) {
    const int64_t words_per_group = job.group_size * job.bits / 32 * PACK_ROWS;
    const uint32_t* words = job.b + first * (job.I * job.bits / 32);
    memset(widened.totals, 0, job.M * PACK_ROWS * sizeof(float));
    for (int64_t g = 0; g < job.I / job.group_size; g++, words += words_per_group) {
        if (job.bits == 4) {
            Kernel::template unpack<4>(words, job.group_size, panel);
        } else {
            Kernel::template unpack<8>(words, job.group_size, panel);
        }
        add_panel<Kernel>(job, widened, first, g, panel);
    }
    for (int64_t m = 0; m < job.M; m++) {
        for (int n = 0; n < PACK_ROWS; n += LANES) {
            const Floats total = load(widened.totals, m * PACK_ROWS + n, Format::float32);
            store(job.out, m * job.O + first + n, job.format, total);
        }
    }
}

/// Computes outputs first_output … last_output − 1 of all rows; the job's weights are prepacked.
template <typename Kernel>
void multiply_panels(const QuantizedMatmulJob& job, int64_t first_output, int64_t last_output) {
    const int64_t groups = job.I / job.group_size;
    float* a = new float[job.M * (job.I + groups + PACK_ROWS)];
    float *sums = a + job.M * job.I, *totals = sums + job.M * groups;
    auto* panel = new typename Kernel::Element[job.group_size * PACK_ROWS];
    for (int64_t m = 0; m < job.M; m++) {
        widen(job, m, a + m * job.I, sums + m * groups);
    }
    for (int64_t o = first_output; o < last_output; o += PACK_ROWS) {
        panel_block<Kernel>(job, {a, sums, totals}, o, panel);
    }
    delete[] panel;
    delete[] a;
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
