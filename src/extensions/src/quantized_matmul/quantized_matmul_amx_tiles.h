// Weights and activations as AMX tiles.
//
// 64 bytes of a row of b unpack to four rows of tiles, one a look-up. A 16-bit lane holds four
// 4-bit numbers; vpermw looks up the bfloat16 number of each among 32, by the lowest five bits of
// the lane, and the table ignores the fifth, so nothing needs masking. 8-bit numbers are two 4-bit
// ones: q = 16·high + low, with a second table for the high halves, and every activation appears
// twice.
//
//     4 bits: look-up p gives numbers p, 4 + p, 8 + p, …        128 weights in 64 bytes
//     8 bits: look-ups 2p and 2p + 1 give numbers p, 2 + p, …    64 weights in 64 bytes
//
// Activations are laid out anew in the order in which the weights unpack, and summed by group.
// float16 numbers are split into two bfloat16 numbers, exactly: two planes.
//
// A *segment* is the part of a group that fits into 64 bytes, and a *unit* the least number of
// whole groups and whole 64 bytes.
#pragma once

#include "common/avx512.h"
#include "src/quantized_matmul/quantized_matmul_kernels.h"

namespace tiny_llm_ext {

namespace {

constexpr int SIDE = 16;        // outputs, or rows of a, in a tile
constexpr int VECTOR = 64;      // bytes in a row of a tile
constexpr int LOOKUPS = 4;      // tiles that 64 bytes of 16 rows of b unpack to
constexpr int PANEL_TILES = 4;  // tiles of outputs that share activations
constexpr int PANEL = QUANTIZED_MATMUL_PANEL;
constexpr int UNIT_VECTORS = 2;       // at most: a group of 128 8-bit numbers
static_assert(PANEL == PANEL_TILES * SIDE);

// Where everything of a call lies.
struct Layout {
    int64_t row_bytes;    // of b
    int64_t groups;       // in a row of b
    int64_t units;        // in a row of b
    int unit_vectors;     // 1 or 2
    int unit_groups;      // 4, 2 or 1; the last unit may have fewer
    int segment_bytes;    // 16, 32 or 64 bytes of b
    int group_segments;   // 1 or 2
    int planes;           // 1 for bfloat16 activations, 2 for float16
    int columns;          // of an activation tile: 1 for a single row of a, else SIDE
    int64_t blocks;       // of SIDE rows of a
    int64_t tile_words;   // pairs in an activation tile
    int64_t sums_offset;  // in words from the start of scratch: groups × blocks·SIDE sums
    int64_t words;        // of scratch

    // Where an activation tile begins, in words from the start of scratch.
    int64_t tile(int64_t segment, int lookup, int plane, int64_t block) const {
        return (((segment * LOOKUPS + lookup) * planes + plane) * blocks + block) * tile_words;
    }

    int64_t first_group(int64_t unit) const {
        return unit * unit_groups < groups ? unit * unit_groups : groups;
    }
};

inline Layout layout_of(const QuantizedMatmulJob& job) {
    Layout layout;
    const int group_bytes = job.group_size * job.bits / 8;
    layout.row_bytes = job.I * job.bits / 8;
    layout.groups = job.I / job.group_size;
    layout.unit_vectors = group_bytes > VECTOR ? group_bytes / VECTOR : 1;
    layout.unit_groups = group_bytes < VECTOR ? VECTOR / group_bytes : 1;
    layout.units = (layout.groups + layout.unit_groups - 1) / layout.unit_groups;
    layout.segment_bytes = group_bytes < VECTOR ? group_bytes : VECTOR;
    layout.group_segments = layout.unit_vectors;
    layout.planes = job.format == Format::float16 ? 2 : 1;
    layout.columns = job.M == 1 ? 1 : SIDE;
    layout.blocks = (job.M + SIDE - 1) / SIDE;
    layout.tile_words = layout.segment_bytes / 4 * layout.columns;
    layout.sums_offset = layout.tile(layout.groups * layout.group_segments, 0, 0, 0);
    layout.sums_offset = (layout.sums_offset + SIDE - 1) / SIDE * SIDE;
    layout.words = layout.sums_offset + layout.groups * layout.blocks * SIDE;
    return layout;
}

// --- registers ----------------------------------------------------------------------------------

// What _tile_loadconfig reads: the shape of the eight tile registers.
struct alignas(64) TileShapes {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// The compiler may not keep what was stored for later, or throw it away: GCC's intrinsics do not
// say that tiles are loaded from memory.
inline void finish_stores() { asm volatile("" ::: "memory"); }

// Registers 0–3 hold sums, 4–5 weights, 6–7 activations.
inline void configure_tiles(const Layout& layout) {
    TileShapes shapes;
    for (int i = 0; i < 8; i++) {
        const bool weights = i == 4 || i == 5;
        shapes.rows[i] = i < 6 ? SIDE : static_cast<uint8_t>(layout.segment_bytes / 4);
        shapes.row_bytes[i] =
            static_cast<uint16_t>(weights ? layout.segment_bytes : 4 * layout.columns);
    }
    finish_stores();
    _tile_loadconfig(&shapes);
}

// --- weights ------------------------------------------------------------------------------------

// A unit of each row of a panel, unpacked: vector × tile of outputs × look-up × output.
struct Weights {
    alignas(64) __m512i rows[UNIT_VECTORS][PANEL_TILES][LOOKUPS][SIDE];

    // A tile of a segment; its rows are VECTOR bytes apart.
    const char* tile(const Layout& layout, int64_t segment, int lookup, int tile) const {
        const int64_t byte = segment * layout.segment_bytes % (layout.unit_vectors * VECTOR);
        return (const char*)rows[byte / VECTOR][tile][lookup] + byte % VECTOR;
    }
};

// The bfloat16 numbers behind 32 indices, of which the lowest four bits count: for even and for odd
// look-ups.
inline void make_tables(int bits, __m512i* tables) {
    alignas(64) uint16_t low[32], high[32];
    for (int i = 0; i < 32; i++) {
        low[i] = float_to_bfloat16(static_cast<float>(i & 15));
        high[i] = float_to_bfloat16(static_cast<float>(16 * (i & 15)));
    }
    tables[0] = _mm512_load_si512(low);
    tables[1] = _mm512_load_si512(bits == 8 ? high : low);
}

// The units of a panel's rows of b, unpacked piece by piece: 64 bytes of SIDE rows at a time.
//
// Unpacking and multiplying use different parts of the processor. The kernel therefore takes a
// piece of the next unit in between the multiplications of the last one, and a tile is loaded long
// after it was stored.
struct Unpacking {
    const Layout* layout;
    const uint32_t* b;  // the panel's first row
    int outputs;        // rows
    __m512i even, odd;  // tables
    int64_t unit;       // that is unpacked now
    int piece;          // vectors × tiles of outputs
    Weights* weights;   // where it goes

    void begin(int64_t next, Weights* into) {
        unit = next;
        piece = next < layout->units ? 0 : pieces();
        weights = into;
    }
    int pieces() const { return layout->unit_vectors * PANEL_TILES; }

    void take_piece() {
        if (piece == pieces()) {
            return;
        }
        const int vector = piece / PANEL_TILES, tile = piece % PANEL_TILES;
        const int64_t stride = layout->row_bytes;
        const int64_t first = (unit * layout->unit_vectors + vector) * VECTOR;
        const int64_t left = stride - first;
        const __mmask16 mask =
            static_cast<__mmask16>(left >= VECTOR ? 0xffff : (1u << left / 4) - 1);
        // 64 rows are more places than a processor follows by itself. The next panel is fetched
        // meanwhile, in the order in which it lies in memory: as many bytes as are used here.
        const char* ahead = (const char*)b + PANEL * stride +
                            (unit * pieces() + piece) * SIDE * VECTOR;
        const char* in = (const char*)b + tile * SIDE * stride + first;
        const int rows = outputs - tile * SIDE < SIDE ? outputs - tile * SIDE : SIDE;
        __m512i(*out)[SIDE] = weights->rows[vector][tile];
        for (int row = 0; row < rows; row++, in += stride) {
            const __m512i words = _mm512_maskz_loadu_epi32(mask, in);
            _mm_prefetch(ahead + row * VECTOR, _MM_HINT_T1);
            out[0][row] = _mm512_permutexvar_epi16(words, even);
            out[1][row] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 4), odd);
            out[2][row] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 8), even);
            out[3][row] = _mm512_permutexvar_epi16(_mm512_srli_epi16(words, 12), odd);
        }
        piece++;
        finish_stores();
    }

    void finish() {
        while (piece < pieces()) {
            take_piece();
        }
    }
};

// --- activations --------------------------------------------------------------------------------

// The activations that meet the 64 bytes of weights `vector`, zero beyond the row's end.
inline void load_activations(const QuantizedMatmulJob& job, int64_t row, int64_t vector,
                             __m512i* x) {
    const int64_t per_vector = VECTOR * 8 / job.bits;
    const uint16_t* a = job.a + row * job.I;
    for (int i = 0; i < per_vector / 32; i++) {
        const int64_t at = vector * per_vector + i * 32;
        x[i] = at < job.I ? _mm512_loadu_si512(a + at) : _mm512_setzero_si512();
    }
}

// Those of them that meet look-up p, in the order of its weights.
inline __m512i pick(const __m512i* x, int p, int bits) {
    alignas(64) uint16_t order[32];
    for (int i = 0; i < 32; i++) {
        order[i] = static_cast<uint16_t>(bits == 4 ? 4 * (i % 16) + p : 2 * i + p / 2);
    }
    const __m512i index = _mm512_load_si512(order);
    const __m512i low = _mm512_permutex2var_epi16(x[0], index, x[1]);
    if (bits == 8) {
        return low;
    }
    const __m512i high = _mm512_permutex2var_epi16(x[2], index, x[3]);
    return _mm512_mask_blend_epi16(0xffff0000u, low, high);
}

// 32 float16 numbers as two planes of bfloat16 numbers.
inline void split_vector(__m512i x, __m512i* planes) {
    __m256i high[2], low[2];
    split(_mm512_cvtph_ps(_mm512_castsi512_si256(x)), &high[0], &low[0]);
    split(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(x, 1)), &high[1], &low[1]);
    planes[0] = _mm512_inserti64x4(_mm512_castsi256_si512(high[0]), high[1], 1);
    planes[1] = _mm512_inserti64x4(_mm512_castsi256_si512(low[0]), low[1], 1);
}

// Stores what meets one look-up, a vector of pairs from each of 16 rows, as tiles: a pair in each
// row, a row of a in each column.
inline void store_tiles(const Layout& layout, const __m512i* rows, int64_t vector, int lookup,
                        int plane, int64_t block, uint32_t* scratch) {
    __m512i pairs[SIDE];
    if (layout.columns == SIDE) {
        transpose((const uint32_t*)rows, SIDE, SIDE, SIDE, pairs);
    }
    const int segment_pairs = layout.segment_bytes / 4;
    for (int i = 0; i < SIDE; i++) {
        const int64_t segment = (vector * SIDE + i) / segment_pairs;
        if (segment >= layout.groups * layout.group_segments) {
            return;  // beyond the row's end
        }
        uint32_t* out = scratch + layout.tile(segment, lookup, plane, block) +
                        i % segment_pairs * layout.columns;
        if (layout.columns == SIDE) {
            _mm512_storeu_si512(out, pairs[i]);
        } else {
            *out = ((const uint32_t*)rows)[i];
        }
    }
}

// Lays out one block of SIDE rows of a, zero beyond the last.
inline void prepare_block(const QuantizedMatmulJob& job, const Layout& layout, int64_t block,
                          uint32_t* scratch) {
    const int64_t first = block * SIDE;
    const int rows = static_cast<int>(job.M - first < SIDE ? job.M - first : SIDE);
    for (int64_t vector = 0; vector < layout.units * layout.unit_vectors; vector++) {
        __m512i picked[LOOKUPS][2][SIDE] = {};  // look-up × plane × row
        for (int r = 0; r < rows; r++) {
            __m512i x[4];
            load_activations(job, first + r, vector, x);
            for (int p = 0; p < LOOKUPS; p++) {
                __m512i planes[2] = {pick(x, p, job.bits)};
                if (layout.planes == 2) {
                    split_vector(planes[0], planes);
                }
                picked[p][0][r] = planes[0];
                picked[p][1][r] = planes[1];
            }
        }
        for (int p = 0; p < LOOKUPS; p++) {
            for (int plane = 0; plane < layout.planes; plane++) {
                store_tiles(layout, picked[p][plane], vector, p, plane, block, scratch);
            }
        }
    }
    float* sums = (float*)scratch + layout.sums_offset + first;
    for (int64_t g = 0; g < layout.groups; g++) {
        for (int r = 0; r < SIDE; r++) {
            __m512 sum = _mm512_setzero_ps();
            for (int i = 0; i < job.group_size && r < rows; i += SIDE) {
                const uint16_t* a = job.a + (first + r) * job.I + g * job.group_size + i;
                sum = _mm512_add_ps(sum, widen(_mm256_loadu_si256((const __m256i*)a), job.format));
            }
            sums[g * layout.blocks * SIDE + r] = _mm512_reduce_add_ps(sum);
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext
