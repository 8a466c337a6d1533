// Weights as vectors: a panel of 64 outputs, from MLX's layout to bfloat16 numbers in registers.
//
// Sixteen *outputs* lie in the lanes of a vector, so a sum is never split over lanes, and the order
// in which it grows does not depend on the number of rows.
//
// 1. transpose: a block of 16 rows × 16 words of b becomes 16 vectors of one word from each row.
//    Interleaved rows are such vectors already.
// 2. unpack: a 16-bit lane holds four 4-bit numbers. vpermw looks up the bfloat16 number of each
//    among 32, by the lowest five bits of the lane; the table ignores the fifth, so nothing needs
//    masking. Four shifts, four look-ups: 128 weights.
//
// 8-bit numbers are two 4-bit ones: q = 16·high + low, with a second table for the high halves and
// every activation present twice. The rest is the same.
#pragma once

#include "common/avx512.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

constexpr int LANES = 16;  // outputs in a vector
constexpr int PANELS = 4;  // vectors of outputs in a panel
constexpr int BLOCK = 32;  // words of b that are transposed at once; at least a group's
constexpr int PAIRS = 4;   // look-ups a word: each gives a pair of weights to every lane
constexpr int TILE = 4;    // words whose pairs fill a vector of activations: 16 pairs

// How the activations of a call lie in scratch memory: in vectors of 16 pairs, in the order in
// which the weights' bits unpack, and summed by group.
struct Layout {
    int64_t words;  // of b in a row
    int64_t groups;
    int words_per_group;
    int planes;           // 1 for bfloat16 activations, 2 for float16
    int64_t row_vectors;  // words / TILE · planes
    int64_t sums_offset;  // in floats from the start of scratch: M × groups sums
    int64_t bytes;        // of scratch
};

inline Layout layout_of(const QuantizedMatmulJob& job) {
    Layout layout;
    layout.words = job.I * job.bits / 32;
    layout.groups = job.I / job.group_size;
    layout.words_per_group = job.group_size * job.bits / 32;
    layout.planes = job.format == Format::float16 ? 2 : 1;
    layout.row_vectors = layout.words / TILE * layout.planes;
    layout.sums_offset = job.M * layout.row_vectors * LANES;
    layout.bytes = 4 * (layout.sums_offset + job.M * layout.groups);
    return layout;
}

// Which activations of a tile meet in which pair. A word unpacks by 4-bit steps of its two halves.
//   4 bits: 8 activations a word; look-up p multiplies numbers p and 4 + p.
//   8 bits: 4 activations a word; look-ups 2p and 2p + 1 (low and high halves) bytes p and 2 + p.
inline __m512i order_of_pairs(int bits) {
    alignas(64) uint16_t order[32];
    for (int i = 0; i < 32; i++) {
        const int word = i / 8, p = i / 2 % 4, half = i % 2;
        order[i] = static_cast<uint16_t>(bits == 4 ? word * 8 + p + 4 * half
                                                   : word * 4 + p / 2 + 2 * half);
    }
    return _mm512_load_si512(order);
}

// Lays out the activations of one row and sums its groups.
inline void prepare_row(const QuantizedMatmulJob& job, const Layout& layout, int64_t row,
                        void* scratch) {
    const uint16_t* a = job.a + row * job.I;
    __m512i* out = static_cast<__m512i*>(scratch) + row * layout.row_vectors;
    const __m512i order = order_of_pairs(job.bits);
    const int count = 128 / job.bits;  // activations a tile: 32, or 16 that appear twice
    for (int64_t tile = 0; tile < layout.words / TILE; tile++, a += count) {
        const __m512i x = _mm512_maskz_loadu_epi16(count == 32 ? ~0u : 0xffffu, a);
        if (layout.planes == 1) {
            out[tile] = _mm512_permutexvar_epi16(order, x);
            continue;
        }
        __m256i high[2], low[2];
        split(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), &high[0], &low[0]);
        split(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)), &high[1], &low[1]);
        const __m512i highs = _mm512_inserti64x4(_mm512_castsi256_si512(high[0]), high[1], 1);
        const __m512i lows = _mm512_inserti64x4(_mm512_castsi256_si512(low[0]), low[1], 1);
        out[2 * tile] = _mm512_permutexvar_epi16(order, highs);
        out[2 * tile + 1] = _mm512_permutexvar_epi16(order, lows);
    }
    float* sums = static_cast<float*>(scratch) + layout.sums_offset + row * layout.groups;
    a = job.a + row * job.I;
    for (int64_t g = 0; g < layout.groups; g++) {
        __m512 sum = _mm512_setzero_ps();
        for (int i = 0; i < job.group_size; i += LANES, a += LANES) {
            sum = _mm512_add_ps(sum, widen(_mm256_loadu_si256((const __m256i*)a), job.format));
        }
        sums[g] = _mm512_reduce_add_ps(sum);
    }
}

// The bfloat16 numbers behind 32 indices, of which the lowest four bits count.
inline void make_tables(int bits, __m512i* tables) {
    alignas(64) uint16_t low[32], high[32];
    for (int i = 0; i < 32; i++) {
        low[i] = float_to_bfloat16(static_cast<float>(i & 15));
        high[i] = float_to_bfloat16(static_cast<float>(16 * (i & 15)));
    }
    tables[0] = _mm512_load_si512(low);
    tables[1] = _mm512_load_si512(bits == 8 ? high : low);
}

// Look-up p of a vector of words: 32 weights.
inline __m512i unpack(__m512i words, int p, __m512i table) {
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4 * p), table);
}

// Cache lines to fetch while a block is multiplied: one for each look-up of each word.
struct Ahead {
    const char* first;
    int64_t word, pair, odd;  // distances: of words, of pairs of look-ups, of the second of a pair

    const char* line(int w, int p) const { return first + w * word + p / 2 * pair + p % 2 * odd; }
};

// The state of one call on one panel group: 64 outputs from `first`.
struct Panel {
    const QuantizedMatmulJob* job;
    Layout layout;
    const __m512i* activations;    // prepared: see Layout
    const float* sums;             // M × groups
    int64_t first;                 // output
    int outputs;                   // 64, or fewer at the end
    __m512i tables[2];             // of even and of odd look-ups
    __m512i words[BLOCK][PANELS];  // a transposed block of b
    Ahead ahead;                   // the block after the next
    __m512* scales;                // groups × PANELS
    __m512* biases;                // groups × PANELS
};

// The block after the next one. Its 64 rows are 64 places in memory, more than a processor follows
// by itself, so the direct path asks for its cache lines one by one as it computes: in one burst
// they would keep everything else waiting, and one block ahead is too late. A row of a block is two
// lines; of interleaved rows, 16 words are one, and each of the panel's vectors comes from a place
// of its own, which goes forward.
inline Ahead block_ahead(const Panel& panel, int64_t first_word) {
    const int64_t stride = panel.layout.words, row_bytes = 4 * stride;
    int64_t word = first_word + 2 * BLOCK, row = panel.first;
    if (word >= stride) {
        word -= stride;
        row += PANELS * LANES;
    }
    const char* rows = (const char*)panel.job->b + row * row_bytes;
    constexpr int LINE = 64;
    static_assert(BLOCK * sizeof(uint32_t) == 2 * LINE && BLOCK * PAIRS == 2 * PANELS * LANES);
    if (panel.job->interleaved) {
        return {rows + word * LINE, LINE, 2 * LANES * row_bytes, LANES * row_bytes};
    }
    return {rows + word * 4, 2 * row_bytes, row_bytes, LINE};
}

inline void load_block(Panel& panel, int64_t first_word, int count) {
    const int64_t stride = panel.layout.words;
    panel.ahead = block_ahead(panel, first_word);
    for (int c = 0; c < PANELS; c++) {
        const int left = panel.outputs - c * LANES;
        const int rows = left < 0 ? 0 : left < LANES ? left : LANES;
        const uint32_t* in = panel.job->b + (panel.first + c * LANES) * stride;
        if (panel.job->interleaved) {
            for (int w = 0; w < count && rows > 0; w++) {
                panel.words[w][c] = _mm512_loadu_si512(in + (first_word + w) * LANES);
            }
            continue;
        }
        for (int w = 0; w < count; w += 16) {
            __m512i column[16];
            const int columns = count - w < 16 ? count - w : 16;
            transpose(in + first_word + w, stride, rows, columns, column);
#pragma GCC unroll 16
            for (int i = 0; i < 16; i++) {
                panel.words[w + i][c] = column[i];
            }
        }
    }
}

// O × groups of 16-bit numbers -> groups × PANELS vectors of float32.
inline void load_by_group(const Panel& panel, const uint16_t* in, __m512* out) {
    const int64_t groups = panel.layout.groups;
    const Format format = panel.job->scale_format;
    const char* next = (const char*)(in + (panel.first + PANELS * LANES) * groups);
    for (int64_t i = 0; i < PANELS * LANES * groups * 2; i += 64) {
        _mm_prefetch(next + i, _MM_HINT_T0);
    }
    for (int c = 0; c < PANELS; c++) {
        const int outputs = panel.outputs - c * LANES;
        const uint16_t* of_lanes = in + (panel.first + c * LANES) * groups;
        if (!panel.job->interleaved) {
            widen_columns(of_lanes, groups, outputs, groups, format, (float*)(out + c),
                          PANELS * LANES);
            continue;
        }
        for (int64_t g = 0; g < groups && outputs > 0; g++) {
            out[g * PANELS + c] = load_halves(of_lanes + g * LANES, format);
        }
    }
}

// Rounds a row of totals and stores it.
inline void store(const Panel& panel, int64_t row, const __m512* totals) {
    uint16_t* out = panel.job->out + row * panel.job->O + panel.first;
    for (int c = 0; c < PANELS && c * LANES < panel.outputs; c++) {
        store_halves(out + c * LANES, totals[c], panel.outputs - c * LANES, panel.job->format);
    }
}

// Calls body(panel, totals) for each panel of outputs first_output … last_output − 1, with its
// scales and biases loaded and room for the sums of `rows` rows, rows × PANELS vectors.
template <typename Body>
inline void for_each_panel(const QuantizedMatmulJob& job, const Layout& layout, const void* scratch,
                           int64_t rows, int64_t first_output, int64_t last_output,
                           const Body& body) {
    Panel panel;
    panel.job = &job;
    panel.layout = layout;
    panel.activations = static_cast<const __m512i*>(scratch);
    panel.sums = static_cast<const float*>(scratch) + layout.sums_offset;
    make_tables(job.bits, panel.tables);
    const int64_t vectors = (2 * layout.groups + rows) * PANELS;
    __m512* memory = static_cast<__m512*>(_mm_malloc(vectors * sizeof(__m512), 64));
    panel.scales = memory;
    panel.biases = memory + layout.groups * PANELS;
    for (int64_t o = first_output; o < last_output; o += QUANTIZED_MATMUL_PANEL) {
        panel.first = o;
        panel.outputs = static_cast<int>(
            last_output - o < QUANTIZED_MATMUL_PANEL ? last_output - o : QUANTIZED_MATMUL_PANEL);
        load_by_group(panel, job.scales, panel.scales);
        load_by_group(panel, job.biases, panel.biases);
        body(panel, panel.biases + layout.groups * PANELS);
    }
    _mm_free(memory);
}

}  // namespace

}  // namespace tiny_llm_ext
