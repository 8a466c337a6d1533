// quantized_matmul with AVX-512: exact products of integers and bfloat16 numbers, 64 outputs at
// once.
//
// The instruction vdpbf16ps multiplies 32 pairs of bfloat16 numbers and adds neighbours into 16
// float32 sums. Sixteen *outputs* lie in its lanes, so a sum is never split over lanes, and the
// order in which it grows is the same for one row as for a thousand.
//
// 1. prepare: the activations are laid out in the order in which the weights' bits unpack, and
//    summed by group. float16 numbers are split into two bfloat16 numbers, exactly.
// 2. transpose: a block of 16 rows × 16 words of b becomes 16 vectors of one word from each row.
// 3. unpack: a 16-bit lane holds four 4-bit numbers. vpermw looks up the bfloat16 number of each
//    among 32, by the lowest five bits of the lane; the table ignores the fifth, so nothing needs
//    masking. Four shifts, four look-ups: 128 weights.
// 4. multiply: few rows unpack as they go; many rows share a panel that is unpacked once into L1.
//
// 8-bit numbers are two 4-bit ones: q = 16·high + low, with a second table for the high halves and
// every activation present twice. The rest is the same.
#if defined(__AVX512BF16__)

#include "src/quantized_matmul/quantized_matmul_avx512_layout.h"
#include "src/quantized_matmul/quantized_matmul_avx512_panel.h"
#include "src/quantized_matmul/quantized_matmul_avx512_rows.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

constexpr int64_t ROW_BLOCK = 192;  // rows whose activations and sums stay in the L2 cache

template <int PLANES>
void run_panel(Panel& panel, int64_t first_row, int64_t rows, __m512* totals) {
    const Layout& layout = panel.layout;
    for (int64_t i = 0; i < rows * PANELS; i++) {
        totals[i] = _mm512_setzero_ps();
    }
    for (int64_t word = 0; word < layout.words; word += BLOCK) {
        const int count =
            layout.words - word < BLOCK ? static_cast<int>(layout.words - word) : BLOCK;
        load_block(panel, word, count);
        for (int w = 0; w < count; w += layout.words_per_group) {
            const int64_t group = (word + w) / layout.words_per_group;
            if (rows <= DIRECT_ROWS) {
                few_rows<PLANES>(panel, rows, first_row, group, w, totals);
            } else {
                many_rows<PLANES>(panel, rows, first_row, group, w, totals);
            }
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        store(panel, first_row + r, totals + r * PANELS);
    }
}

void run(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
         int64_t last_output) {
    Panel panel;
    panel.job = &job;
    panel.layout = layout_of(job);
    panel.pairs = static_cast<const uint32_t*>(scratch);
    panel.sums = static_cast<const float*>(scratch) + panel.layout.sums_offset;
    make_tables(job.bits, panel.tables);
    const int64_t row_block = job.M < ROW_BLOCK ? job.M : ROW_BLOCK;
    const int64_t vectors = (2 * panel.layout.groups + row_block) * PANELS;
    __m512* memory = static_cast<__m512*>(_mm_malloc(vectors * sizeof(__m512), 64));
    panel.scales = memory;
    panel.biases = memory + panel.layout.groups * PANELS;
    __m512* totals = panel.biases + panel.layout.groups * PANELS;
    for (int64_t o = first_output; o < last_output; o += QUANTIZED_MATMUL_PANEL) {
        panel.first = o;
        panel.outputs = static_cast<int>(
            last_output - o < QUANTIZED_MATMUL_PANEL ? last_output - o : QUANTIZED_MATMUL_PANEL);
        load_by_group(panel, job.scales, panel.scales);
        load_by_group(panel, job.biases, panel.biases);
        for (int64_t row = 0; row < job.M; row += row_block) {
            const int64_t rows = job.M - row < row_block ? job.M - row : row_block;
            if (panel.layout.planes == 1) {
                run_panel<1>(panel, row, rows, totals);
            } else {
                run_panel<2>(panel, row, rows, totals);
            }
        }
    }
    _mm_free(memory);
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_avx512 = {scratch_bytes, prepare, run};

}  // namespace tiny_llm_ext

#endif  // elsewhere nothing is left of this file
