// quantized_matmul with AVX-512: exact products of integers and bfloat16 numbers, 64 outputs at
// once.
//
// The instruction vdpbf16ps multiplies 32 pairs of bfloat16 numbers and adds neighbours into 16
// float32 sums, one a lane, in the order of the pairs: the same for one row as for a thousand. Few
// rows unpack the weights as they go; many rows share a group that is unpacked once into L1.
// quantized_matmul_avx512_panel.h says how weights and activations get into registers.
#include "src/quantized_matmul/quantized_matmul_kernels.h"

#if defined(__AVX512BF16__)

#include "src/quantized_matmul/quantized_matmul_avx512_panel.h"

namespace tiny_llm_ext {

namespace {

constexpr int MAX_ROWS = 6;         // rows × panels accumulators fit in the registers
constexpr int DIRECT_ROWS = 4;      // up to here, unpacking as we go is cheaper
constexpr int64_t ROW_BLOCK = 192;  // rows whose activations and sums stay in the L2 cache

// totals[r][c] += scale · sums of the group + bias · Σ a
template <int ROWS>
inline void add_group(const Panel& panel, int64_t first_row, int64_t group,
                      const __m512 (&products)[ROWS][PANELS], __m512* totals) {
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
        const __m512 sum =
            _mm512_set1_ps(panel.sums[(first_row + r) * panel.layout.groups + group]);
#pragma GCC unroll 4
        for (int c = 0; c < PANELS; c++) {
            __m512 total = totals[r * PANELS + c];
            total = _mm512_fmadd_ps(products[r][c], panel.scales[group * PANELS + c], total);
            totals[r * PANELS + c] = _mm512_fmadd_ps(sum, panel.biases[group * PANELS + c], total);
        }
    }
}

// One group of ROWS rows. `weights(word, p, c)` gives the vector of look-up p of a word of the
// group.
template <int ROWS, int PLANES, typename Weights>
inline void multiply_group(const Panel& panel, int64_t first_row, int64_t group,
                           const Weights& weights, __m512* totals) {
    const int words = panel.layout.words_per_group;
    const int64_t stride = panel.layout.row_vectors * LANES;
    const uint32_t* a = (const uint32_t*)(panel.activations) + first_row * stride +
                        group * words / TILE * PLANES * LANES;
    __m512 products[ROWS][PANELS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < PANELS; c++) {
            products[r][c] = _mm512_setzero_ps();
        }
    }
    for (int word = 0; word < words; word++, a += PAIRS) {
#pragma GCC unroll 4
        for (int p = 0; p < PAIRS; p++) {
            __m512bh w[PANELS];
#pragma GCC unroll 4
            for (int c = 0; c < PANELS; c++) {
                w[c] = (__m512bh)weights(word, p, c);
            }
#pragma GCC unroll 2
            for (int plane = 0; plane < PLANES; plane++) {
#pragma GCC unroll 6
                for (int r = 0; r < ROWS; r++) {
                    const __m512bh x = (__m512bh)_mm512_set1_epi32(
                        static_cast<int>(a[r * stride + p + plane * LANES]));
#pragma GCC unroll 4
                    for (int c = 0; c < PANELS; c++) {
                        products[r][c] = _mm512_dpbf16_ps(products[r][c], x, w[c]);
                    }
                }
            }
        }
        if (PLANES == 2 && word % TILE == TILE - 1) {
            a += LANES;  // the second plane's vector was read beside the first's
        }
    }
    add_group<ROWS>(panel, first_row, group, products, totals);
}

// Few rows: the weights unpack as they are used.
template <int ROWS, int PLANES>
void group_direct(const Panel& panel, int64_t first_row, int64_t group, int first_word,
                  __m512* totals) {
    const __m512i even = panel.tables[0], odd = panel.tables[1];
    const __m512i(*words)[PANELS] = panel.words + first_word;
    multiply_group<ROWS, PLANES>(
        panel, first_row, group,
        [&](int word, int p, int c) __attribute__((always_inline)) {
            if (c == 0) {
                _mm_prefetch(panel.ahead.line(first_word + word, p), _MM_HINT_T0);
            }
            return unpack(words[word][c], p, p % 2 == 0 ? even : odd);
        },
        totals);
}

// Many rows: they share weights that were unpacked before.
template <int ROWS, int PLANES>
void group_unpacked(const Panel& panel, int64_t first_row, int64_t group, const __m512i* unpacked,
                    __m512* totals) {
    multiply_group<ROWS, PLANES>(
        panel, first_row, group,
        [&](int word, int p, int c)
            __attribute__((always_inline)) { return unpacked[(word * PAIRS + p) * PANELS + c]; },
        totals);
}

// Calls f.operator()<rows>(): loops over rows unroll for a number that the compiler knows.
template <int MOST, typename Function>
inline void with_rows(int64_t rows, const Function& f) {
    if (rows == MOST) {
        f.template operator()<MOST>();
    } else if constexpr (MOST > 1) {
        with_rows<MOST - 1>(rows, f);
    }
}

template <int PLANES>
void many_rows(const Panel& panel, int64_t rows, int64_t first_row, int64_t group, int word,
               __m512* totals) {
    __m512i unpacked[BLOCK * PAIRS * PANELS];
    for (int w = 0; w < panel.layout.words_per_group; w++) {
#pragma GCC unroll 4
        for (int p = 0; p < PAIRS; p++) {
#pragma GCC unroll 4
            for (int c = 0; c < PANELS; c++) {
                unpacked[(w * PAIRS + p) * PANELS + c] =
                    unpack(panel.words[word + w][c], p, panel.tables[p % 2]);
            }
        }
    }
    for (int64_t r = 0; r < rows; r += MAX_ROWS) {
        with_rows<MAX_ROWS>(rows - r < MAX_ROWS ? rows - r : MAX_ROWS, [&]<int ROWS>() {
            group_unpacked<ROWS, PLANES>(panel, first_row + r, group, unpacked,
                                         totals + r * PANELS);
        });
    }
}

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
            if (rows > DIRECT_ROWS) {
                many_rows<PLANES>(panel, rows, first_row, group, w, totals);
                continue;
            }
            with_rows<DIRECT_ROWS>(rows, [&]<int ROWS>() {
                group_direct<ROWS, PLANES>(panel, first_row, group, w, totals);
            });
        }
    }
    for (int64_t r = 0; r < rows; r++) {
        store(panel, first_row + r, totals + r * PANELS);
    }
}

int64_t scratch_bytes(const QuantizedMatmulJob& job) { return layout_of(job).bytes; }

void prepare(const QuantizedMatmulJob& job, void* scratch, int64_t first_row, int64_t last_row) {
    const Layout layout = layout_of(job);
    for (int64_t row = first_row; row < last_row; row++) {
        prepare_row(job, layout, row, scratch);
    }
}

void run(const QuantizedMatmulJob& job, const void* scratch, int64_t first_output,
         int64_t last_output) {
    const int64_t row_block = job.M < ROW_BLOCK ? job.M : ROW_BLOCK;
    for_each_panel(job, layout_of(job), scratch, row_block, first_output, last_output,
                   [&](Panel& panel, __m512* totals) {
                       for (int64_t row = 0; row < job.M; row += row_block) {
                           const int64_t rows = job.M - row < row_block ? job.M - row : row_block;
                           if (panel.layout.planes == 1) {
                               run_panel<1>(panel, row, rows, totals);
                           } else {
                               run_panel<2>(panel, row, rows, totals);
                           }
                       }
                   });
}

}  // namespace

const QuantizedMatmulKernel quantized_matmul_avx512 = {scratch_bytes, prepare, run,
                                                       /*reads_interleaved=*/true};

}  // namespace tiny_llm_ext

#endif  // elsewhere nothing is left of this file
