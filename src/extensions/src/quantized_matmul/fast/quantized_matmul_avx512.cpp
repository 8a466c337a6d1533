// quantized_matmul with AVX-512 for 4-bit weights and bfloat16: exact products of integers and
// bfloat16 values, 64 outputs at once. 8-bit weights would need two lookups and two multiplications
// each, float16 two multiplications; quantized_matmul_fixed_point_simd.cpp multiplies both once.
//
// vdpbf16ps multiplies 32 pairs of bfloat16 values and adds neighboring products to 16 float32
// sums, one per lane, in the order of the pairs, for any number of rows. Up to six rows share
// weights that are unpacked in registers as they are multiplied; unpacking overlaps with
// multiplication. Every further tile of six rows unpacks the weights again. Register layouts:
// quantized_matmul_avx512_panel.h.
#include "src/quantized_matmul/quantized_matmul_kernels.h"

#if defined(__AVX512BF16__)

#include "src/quantized_matmul/fast/quantized_matmul_avx512_panel.h"
#include "src/quantized_matmul/fast/row_tiles.h"

namespace tiny_llm_ext {

namespace {

constexpr int64_t MAX_ROWS = 6;  // MAX_ROWS × PANEL_VECTORS sums fit in 32 registers

// totals[r][c] += scale · dots[r][c] + bias · Σ a, for one group.
template <int ROWS>
inline void add_group(const Avx512Panel& panel, const PrepackedWeights& weights, int64_t first_row,
                      int64_t group, const __m512 (&dots)[ROWS][PANEL_VECTORS], __m512* totals) {
    weights.prefetch_factors(group);
    const int64_t groups = panel.layout.groups;
    const float* sums = panel.sums + first_row * groups + group;
#pragma GCC unroll 4
    for (int c = 0; c < PANEL_VECTORS; c++) {
        const __m512 scale = weights.scale(group, c), bias = weights.bias(group, c);
#pragma GCC unroll 6
        for (int r = 0; r < ROWS; r++) {
            const __m512 sum = _mm512_set1_ps(sums[r * groups]);
            const __m512 total = _mm512_fmadd_ps(dots[r][c], scale, totals[r * PANEL_VECTORS + c]);
            totals[r * PANEL_VECTORS + c] = _mm512_fmadd_ps(sum, bias, total);
        }
    }
}

// Multiplies one group by ROWS rows and adds it to `totals`.
template <int ROWS>
__attribute__((noinline)) void multiply_group(const Avx512Panel& panel,
                                              const PrepackedWeights& weights, int64_t first_row,
                                              int64_t group, __m512* totals) {
    const __m512i table = panel.table;
    const int tiles = panel.layout.words_per_group / TILE_WORDS;
    const int64_t tile_stride = panel.layout.tile_vectors * LANES;
    const uint32_t* a =
        (const uint32_t*)panel.activations + first_row * LANES + group * tiles * tile_stride;
    __m512 dots[ROWS][PANEL_VECTORS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < PANEL_VECTORS; c++) {
            dots[r][c] = _mm512_setzero_ps();
        }
    }
    for (int tile = 0; tile < tiles; tile++, a += tile_stride) {
        for (int w = 0; w < TILE_WORDS; w++) {
            const int64_t word = (group * tiles + tile) * TILE_WORDS + w;
#pragma GCC unroll 4
            for (int p = 0; p < LOOKUPS; p++) {
                weights.prefetch(word, p);
                __m512bh pairs[PANEL_VECTORS];
#pragma GCC unroll 4
                for (int c = 0; c < PANEL_VECTORS; c++) {
                    pairs[c] = (__m512bh)unpack(weights.word(word, c), p, table);
                }
#pragma GCC unroll 6
                for (int r = 0; r < ROWS; r++) {
                    const __m512bh x = (__m512bh)_mm512_set1_epi32(
                        static_cast<int>(a[r * LANES + w * LOOKUPS + p]));
#pragma GCC unroll 4
                    for (int c = 0; c < PANEL_VECTORS; c++) {
                        dots[r][c] = _mm512_dpbf16_ps(dots[r][c], x, pairs[c]);
                    }
                }
            }
        }
    }
    add_group(panel, weights, first_row, group, dots, totals);
}

inline void clear(__m512* totals, int64_t rows) {
    for (int64_t i = 0; i < rows * PANEL_VECTORS; i++) {
        totals[i] = _mm512_setzero_ps();
    }
}

inline void store(const Avx512Panel& panel, int64_t first_row, int64_t rows, const __m512* totals) {
    for (int64_t r = 0; r < rows; r++) {
        store(panel, first_row + r, totals + r * PANEL_VECTORS);
    }
}

// Computes a panel, whose weights are read once per tile of rows. Totals stay in the L1 cache,
// because a tile's outputs are written before the next tile begins.
void run_panel(const Avx512Panel& panel) {
    const PrepackedWeights weights(panel);
    __m512 totals[MAX_ROWS * PANEL_VECTORS];
    for_tiles<MAX_ROWS>(panel.job->M, [&]<int ROWS>(int64_t row) {
        clear(totals, ROWS);
        for (int64_t group = 0; group < panel.layout.groups; group++) {
            multiply_group<ROWS>(panel, weights, row, group, totals);
        }
        store(panel, row, ROWS, totals);
    });
}

int64_t scratch_bytes(const QuantizedMatmulJob& job) { return layout_of(job).bytes; }

void prepare(const QuantizedMatmulJob& job, void* scratch, int64_t first_row, int64_t last_row) {
    const Avx512Layout layout = layout_of(job);
    const __m512i order = order_of_pairs();
    for (int64_t row = first_row; row < last_row; row++) {
        prepare_row(job, layout, order, row, scratch);
    }
}

void run(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
         int64_t last_output) {
    Avx512Panel panel;
    panel.job = &job;
    panel.layout = layout_of(job);
    panel.activations = static_cast<const __m512i*>(scratch);
    panel.sums = static_cast<const float*>(scratch) + panel.layout.sums_offset;
    panel.table = make_table(job);
    for (int64_t o = first_output; o < last_output; o += PANEL_OUTPUTS) {
        panel.first = o;
        panel.outputs =
            static_cast<int>(last_output - o < PANEL_OUTPUTS ? last_output - o : PANEL_OUTPUTS);
        run_panel(panel);
    }
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_avx512 = {scratch_bytes, prepare, run,
                                                       /*prepack_rows=*/PANEL_OUTPUTS};

}  // namespace tiny_llm_ext

#endif  // the file is empty for other instruction sets
