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
//
#include "src/quantized_matmul/quantized_matmul_kernels.h"

#if defined(__AVX512BF16__)

#include <immintrin.h>

namespace tiny_llm_ext {

namespace {

constexpr int LANES = 16;           // outputs in a vector
constexpr int PANELS = 4;           // vectors of outputs in flight
constexpr int BLOCK = 32;           // words of b that are transposed at once; at least a group's
constexpr int PAIRS = 4;            // look-ups a word
constexpr int MAX_ROWS = 6;         // rows × panels accumulators fit in the registers
constexpr int DIRECT_ROWS = 4;      // up to here, unpacking as we go is cheaper
constexpr int64_t ROW_BLOCK = 192;  // rows whose activations and sums stay in the L2 cache

struct Layout {
    int64_t words;  // of b in a row
    int64_t groups;
    int words_per_group;
    int planes;           // 1 for bfloat16 activations, 2 for float16
    int64_t row_pairs;    // 32-bit pairs of a prepared row, all planes
    int64_t sums_offset;  // in floats from the start of scratch
};

Layout layout_of(const QuantizedMatmulJob& job) {
    Layout layout;
    layout.words = job.I * job.bits / 32;
    layout.groups = job.I / job.group_size;
    layout.words_per_group = job.group_size * job.bits / 32;
    layout.planes = job.format == Format::float16 ? 2 : 1;
    layout.row_pairs = layout.words * PAIRS * layout.planes;
    layout.sums_offset = job.M * layout.row_pairs;
    return layout;
}

inline __m512 widen(__m256i x, Format format) {
    return format == Format::float16
               ? _mm512_cvtph_ps(x)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

inline uint16_t round_to_bfloat16(float x) {
    return static_cast<uint16_t>(_mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(x)), 0));
}

// Which activations of a word's meet in look-up p. A word unpacks by 4-bit steps of its two halves.
//   4 bits: numbers p and 4 + p.   8 bits: bytes p/2 and 2 + p/2, low halves first.
inline int partner(int p, int half, int bits) {
    return bits == 4 ? p + 4 * half : p / 2 + 2 * half;
}

// The bfloat16 numbers behind 32 indices, of which the lowest four bits count.
inline void make_tables(int bits, __m512i* tables) {
    alignas(64) uint16_t low[32], high[32];
    for (int i = 0; i < 32; i++) {
        low[i] = round_to_bfloat16(static_cast<float>(i & 15));
        high[i] = round_to_bfloat16(static_cast<float>(16 * (i & 15)));
    }
    tables[0] = _mm512_load_si512(low);
    tables[1] = _mm512_load_si512(bits == 8 ? high : low);
}

// Look-up p of a vector of words: 32 weights.
inline __m512i unpack(__m512i words, int p, __m512i table) {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * p), table);
}

// 16×16 words: out[c] holds word c of the 16 rows. Rows at or beyond `rows`, and words at or beyond
// `columns`, are zero.
inline void transpose(const uint32_t* in, int64_t stride, int rows, int columns, __m512i* out) {
    const __mmask16 mask = static_cast<__mmask16>((1u << columns) - 1);
    __m512i r[16], t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        r[i] = i < rows ? _mm512_maskz_loadu_epi32(mask, in + i * stride) : _mm512_setzero_si512();
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[i], r[4 + i], 0xdd);
        t[8 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0x88);
        t[12 + i] = _mm512_shuffle_i32x4(r[8 + i], r[12 + i], 0xdd);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        out[i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0x88);
        out[4 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0x88);
        out[8 + i] = _mm512_shuffle_i32x4(t[i], t[8 + i], 0xdd);
        out[12 + i] = _mm512_shuffle_i32x4(t[4 + i], t[12 + i], 0xdd);
    }
}

// The state of one call on one panel group: 64 outputs from `first`.
struct Panel {
    const QuantizedMatmulJob* job;
    Layout layout;
    const uint32_t* pairs;         // prepared activations, M × row_pairs
    const float* sums;             // M × groups
    int64_t first;                 // output
    int outputs;                   // 64, or fewer at the end
    __m512i tables[2];             // of even and of odd look-ups
    __m512i words[BLOCK][PANELS];  // a transposed block of b
    const uint32_t* ahead;         // the block after the next
    __m512* scales;                // groups × PANELS
    __m512* biases;                // groups × PANELS
};

// Where the block after the next one begins. Its 64 rows are 64 places in memory, more than a
// processor follows by itself, so the direct path asks for its cache lines one by one as it
// computes: in one burst they would keep everything else waiting, and one block ahead is too late.
inline const uint32_t* block_ahead(const Panel& panel, int64_t first_word) {
    const int64_t stride = panel.layout.words;
    const int64_t ahead = first_word + 2 * BLOCK;
    return ahead < stride
               ? panel.job->b + panel.first * stride + ahead
               : panel.job->b + (panel.first + PANELS * LANES) * stride + (ahead - stride);
}

void load_block(Panel& panel, int64_t first_word, int count) {
    const int64_t stride = panel.layout.words;
    panel.ahead = block_ahead(panel, first_word);
    for (int c = 0; c < PANELS; c++) {
        const int rows = panel.outputs - c * LANES;
        const uint32_t* in = panel.job->b + (panel.first + c * LANES) * stride + first_word;
        for (int w = 0; w < count; w += 16) {
            __m512i column[16];
            const int columns = count - w < 16 ? count - w : 16;
            transpose(in + w, stride, rows < 0 ? 0 : rows > 16 ? 16 : rows, columns, column);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                panel.words[w + i][c] = column[i];
            }
        }
    }
}

// O × groups of 16-bit numbers -> groups × PANELS vectors of float32.
void load_by_group(const Panel& panel, const uint16_t* in, __m512* out) {
    const int64_t groups = panel.layout.groups;
    const char* next = (const char*)(in + (panel.first + PANELS * LANES) * groups);
    for (int64_t i = 0; i < PANELS * LANES * groups * 2; i += 64) {
        _mm_prefetch(next + i, _MM_HINT_T0);
    }
    alignas(64) uint32_t rows[LANES][LANES];
    for (int64_t g = 0; g < groups; g += LANES) {
        const int count = groups - g < LANES ? static_cast<int>(groups - g) : LANES;
        const __mmask16 mask = static_cast<__mmask16>((1u << count) - 1);
        for (int c = 0; c < PANELS; c++) {
            for (int i = 0; i < LANES; i++) {
                const int64_t o = c * LANES + i;
                const __m256i row =
                    o < panel.outputs
                        ? _mm256_maskz_loadu_epi16(mask, in + (panel.first + o) * groups + g)
                        : _mm256_setzero_si256();
                _mm512_store_ps(rows[i], widen(row, panel.job->scale_format));
            }
            __m512i column[16];
            transpose(rows[0], LANES, LANES, LANES, column);
            for (int i = 0; i < count; i++) {
                out[(g + i) * PANELS + c] = _mm512_castsi512_ps(column[i]);
            }
        }
    }
}

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
    const int64_t stride = panel.layout.row_pairs;
    const uint32_t* a = panel.pairs + first_row * stride + group * words * PAIRS * PLANES;
    __m512 products[ROWS][PANELS];
#pragma GCC unroll 6
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
        for (int c = 0; c < PANELS; c++) {
            products[r][c] = _mm512_setzero_ps();
        }
    }
    for (int word = 0; word < words; word++, a += PAIRS * PLANES) {
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
                        static_cast<int>(a[r * stride + p * PLANES + plane]));
#pragma GCC unroll 4
                    for (int c = 0; c < PANELS; c++) {
                        products[r][c] = _mm512_dpbf16_ps(products[r][c], x, w[c]);
                    }
                }
            }
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
    // Two cache lines of each row of the block ahead: 128, one a look-up.
    static_assert(BLOCK * sizeof(uint32_t) == 2 * 64 && BLOCK * PAIRS == 2 * PANELS * LANES);
    const char* ahead = (const char*)(panel.ahead + 2 * first_word * panel.layout.words);
    const int64_t row_bytes = panel.layout.words * 4;
    multiply_group<ROWS, PLANES>(
        panel, first_row, group,
        [&](int word, int p, int c) __attribute__((always_inline)) {
            if (c == 0) {
                _mm_prefetch(ahead + (2 * word + p / 2) * row_bytes + p % 2 * 64, _MM_HINT_T0);
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

template <int PLANES>
void few_rows(const Panel& panel, int64_t rows, int64_t first_row, int64_t group, int word,
              __m512* totals) {
    switch (rows) {
        case 1:
            return group_direct<1, PLANES>(panel, first_row, group, word, totals);
        case 2:
            return group_direct<2, PLANES>(panel, first_row, group, word, totals);
        case 3:
            return group_direct<3, PLANES>(panel, first_row, group, word, totals);
        default:
            return group_direct<4, PLANES>(panel, first_row, group, word, totals);
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
    int64_t r = 0;
    for (; r + MAX_ROWS <= rows; r += MAX_ROWS) {
        group_unpacked<MAX_ROWS, PLANES>(panel, first_row + r, group, unpacked,
                                         totals + r * PANELS);
    }
    switch (rows - r) {
        case 1:
            group_unpacked<1, PLANES>(panel, first_row + r, group, unpacked, totals + r * PANELS);
            break;
        case 2:
            group_unpacked<2, PLANES>(panel, first_row + r, group, unpacked, totals + r * PANELS);
            break;
        case 3:
            group_unpacked<3, PLANES>(panel, first_row + r, group, unpacked, totals + r * PANELS);
            break;
        case 4:
            group_unpacked<4, PLANES>(panel, first_row + r, group, unpacked, totals + r * PANELS);
            break;
        case 5:
            group_unpacked<5, PLANES>(panel, first_row + r, group, unpacked, totals + r * PANELS);
            break;
    }
}

void store(const Panel& panel, int64_t row, const __m512* totals) {
    uint16_t* out = panel.job->out + row * panel.job->O + panel.first;
    for (int c = 0; c < PANELS; c++) {
        const int count = panel.outputs - c * LANES;
        if (count <= 0) {
            return;
        }
        const __mmask16 mask = static_cast<__mmask16>(count >= LANES ? 0xffff : (1u << count) - 1);
        const __m256i value =
            panel.job->format == Format::float16
                ? _mm512_cvtps_ph(totals[c], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                : (__m256i)_mm512_cvtneps_pbh(totals[c]);
        _mm256_mask_storeu_epi16(out + c * LANES, mask, value);
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

int64_t scratch_bytes(const QuantizedMatmulJob& job) {
    const Layout layout = layout_of(job);
    return 4 * (layout.sums_offset + job.M * layout.groups);
}

void prepare(const QuantizedMatmulJob& job, void* scratch, int64_t first_row, int64_t last_row) {
    const Layout layout = layout_of(job);
    const int per_word = 32 / job.bits;
    for (int64_t m = first_row; m < last_row; m++) {
        const uint16_t* a = job.a + m * job.I;
        uint16_t* pairs = static_cast<uint16_t*>(scratch) + m * layout.row_pairs * 2;
        for (int64_t word = 0; word < layout.words; word++) {
            for (int p = 0; p < PAIRS; p++) {
                for (int half = 0; half < 2; half++) {
                    const uint16_t x = a[word * per_word + partner(p, half, job.bits)];
                    uint16_t* pair = pairs + (word * PAIRS + p) * layout.planes * 2 + half;
                    if (layout.planes == 1) {
                        pair[0] = x;
                    } else {
                        // 11 significant bits are 8 and 3: two bfloat16 numbers, no rounding.
                        const float value = _cvtsh_ss(x);
                        pair[0] = round_to_bfloat16(value);
                        pair[2] = round_to_bfloat16(value - bfloat16_to_float(pair[0]));
                    }
                }
            }
        }
        float* sums = static_cast<float*>(scratch) + layout.sums_offset + m * layout.groups;
        for (int64_t g = 0; g < layout.groups; g++) {
            __m512 sum = _mm512_setzero_ps();
            for (int i = 0; i < job.group_size; i += LANES) {
                const __m256i x = _mm256_loadu_si256((const __m256i*)(a + g * job.group_size + i));
                sum = _mm512_add_ps(sum, widen(x, job.format));
            }
            sums[g] = _mm512_reduce_add_ps(sum);
        }
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
