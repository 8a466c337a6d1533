// Weights and activations as AMX tiles of bytes.
//
// A tile of weights has an output in each row: 64 bytes of a row of b are 64 8-bit numbers, or the
// even and the odd ones of 128 4-bit numbers, two *parts*. A tile of activations has a row of
// integers (fixed_point_rounding.h) in each column, four of its bytes below each other in a row of
// the tile; the integers' high and low bytes are two *planes*.
//
// A *segment* is the part of a group that fits into 64 bytes, and a *unit* the least number of
// whole groups and whole 64 bytes.
#pragma once

#include "common/avx512.h"
#include "src/quantized_matmul/fixed_point_rounding.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int SIDE = 16;        // outputs, or rows of integers, in a tile
constexpr int VECTOR = 64;      // bytes in a row of a tile
constexpr int PANEL_TILES = 4;  // tiles of outputs that are unpacked together
constexpr int PANEL = QUANTIZED_MATMUL_PANEL;
constexpr int UNIT_VECTORS = 2;  // at most: a group of 128 8-bit numbers
constexpr int PARTS = 2;         // at most
constexpr int PLANES = 2;
static_assert(PANEL == PANEL_TILES * SIDE);

// Where everything of a call lies.
struct Layout {
    int64_t row_bytes;   // of b
    int64_t groups;      // in a row of b
    int64_t units;       // in a row of b
    int unit_vectors;    // 1 or 2
    int unit_groups;     // 4, 2 or 1; the last unit may have fewer
    int segment_bytes;   // 16, 32 or 64 bytes of b
    int group_segments;  // 1 or 2
    int parts;           // 1 or 2
    int64_t rows;        // of integers
    int64_t blocks;      // of SIDE rows
    int64_t tile_words;  // four bytes each, in a tile of activations
    int64_t factors;     // in words from the start of scratch: groups × blocks·SIDE steps …
    int64_t sums;        // … and as many sums
    int64_t words;       // of scratch

    // Where a tile of activations begins, in words from the start of scratch.
    int64_t tile(int64_t segment, int part, int plane, int64_t block) const {
        return (((segment * parts + part) * PLANES + plane) * blocks + block) * tile_words;
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
    layout.parts = 8 / job.bits;
    layout.rows = job.M * rows_of_integers(job.format);
    layout.blocks = (layout.rows + SIDE - 1) / SIDE;
    layout.tile_words = layout.segment_bytes / 4 * SIDE;
    layout.factors = layout.tile(layout.groups * layout.group_segments, 0, 0, 0);
    layout.sums = layout.factors + layout.groups * layout.blocks * SIDE;
    layout.words = layout.sums + layout.groups * layout.blocks * SIDE;
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
        shapes.row_bytes[i] = static_cast<uint16_t>(weights ? layout.segment_bytes : VECTOR);
    }
    finish_stores();
    _tile_loadconfig(&shapes);
}

// --- weights ------------------------------------------------------------------------------------

// A unit of each row of a panel, unpacked: vector × tile of outputs × part × output.
struct Weights {
    alignas(64) __m512i rows[UNIT_VECTORS][PANEL_TILES][PARTS][SIDE];

    // A tile of a segment; its rows are VECTOR bytes apart.
    const char* tile(const Layout& layout, int64_t segment, int part, int tile) const {
        const int64_t byte = segment * layout.segment_bytes & (layout.unit_vectors * VECTOR - 1);
        return (const char*)rows[byte / VECTOR][tile][part] + byte % VECTOR;
    }
};

// Unpacks a unit of the `outputs` rows of b that begin at `b`. 64 rows are more places in memory
// than a processor follows by itself: the next panel is fetched meanwhile, in the order in which it
// lies there, as many bytes as are used here.
inline void unpack(const Layout& layout, const uint32_t* b, int64_t unit, int outputs,
                   Weights& weights) {
    const __m512i four_bits = _mm512_set1_epi8(15);
    for (int v = 0; v < layout.unit_vectors; v++) {
        const int64_t first = (unit * layout.unit_vectors + v) * VECTOR;
        const int64_t left = layout.row_bytes - first;
        const __mmask16 mask =
            static_cast<__mmask16>(left >= VECTOR ? 0xffff : (1u << left / 4) - 1);
        const char* in = (const char*)b + first;
        const char* ahead = (const char*)b + PANEL * layout.row_bytes + first * PANEL;
        for (int o = 0; o < outputs; o++, in += layout.row_bytes) {
            const __m512i bytes = _mm512_maskz_loadu_epi32(mask, in);
            _mm_prefetch(ahead + o * VECTOR, _MM_HINT_T1);
            __m512i(*out)[SIDE] = weights.rows[v][o / SIDE];
            if (layout.parts == 1) {
                out[0][o % SIDE] = bytes;
                continue;
            }
            out[0][o % SIDE] = _mm512_and_si512(bytes, four_bits);
            out[1][o % SIDE] = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), four_bits);
        }
    }
    finish_stores();
}

// --- activations --------------------------------------------------------------------------------

// The high or the low bytes of a group's integers, in the order of its weights' bytes: part × byte.
inline void bytes_of(const RoundedGroup& rounded, int group_size, int plane, int parts,
                     uint8_t (*out)[MAX_GROUP]) {
    alignas(64) uint8_t bytes[MAX_GROUP] = {};
    for (int v = 0; v < group_size / LANES; v++) {
        const __m512i integers = (__m512i)rounded.integers[v];
        const __m512i shifted = plane == 0 ? _mm512_srai_epi32(integers, 8) : integers;
        _mm_storeu_si128((__m128i*)(bytes + v * LANES), _mm512_cvtepi32_epi8(shifted));
    }
    for (int i = 0; i < group_size; i += VECTOR) {
        const __m512i x = _mm512_load_si512(bytes + i);
        if (parts == 1) {
            _mm512_storeu_si512(out[0] + i, x);
            continue;
        }
        _mm256_storeu_si256((__m256i*)(out[0] + i / 2), _mm512_cvtepi16_epi8(x));
        _mm256_storeu_si256((__m256i*)(out[1] + i / 2),
                            _mm512_cvtepi16_epi8(_mm512_srli_epi16(x, 8)));
    }
}

// Lays out one group of one block of rows of integers, zero beyond the last.
inline void prepare_group(const QuantizedMatmulJob& job, const Layout& layout, int64_t block,
                          int64_t g, uint32_t* scratch) {
    alignas(64) uint8_t bytes[PLANES][SIDE][PARTS][MAX_GROUP] = {};
    float* steps = (float*)(scratch + layout.factors) + (g * layout.blocks + block) * SIDE;
    float* sums = (float*)(scratch + layout.sums) + (g * layout.blocks + block) * SIDE;
    const int together = rows_of_integers(job.format);
    for (int r = 0; r < SIDE; r += together) {
        RoundedGroup rounded[MAX_ROWS_OF_INTEGERS] = {};
        if (block * SIDE + r < layout.rows) {
            round_group(job, (block * SIDE + r) / together, g, rounded);
        }
        for (int row = 0; row < together; row++) {
            steps[r + row] = rounded[row].factors.step;
            sums[r + row] = rounded[row].factors.sum;
            for (int plane = 0; plane < PLANES; plane++) {
                bytes_of(rounded[row], job.group_size, plane, layout.parts, bytes[plane][r + row]);
            }
        }
    }
    for (int plane = 0; plane < PLANES; plane++) {
        for (int part = 0; part < layout.parts; part++) {
            for (int i = 0; i < layout.group_segments; i++) {
                __m512i columns[SIDE];
                transpose((const uint32_t*)(bytes[plane][0][part] + i * VECTOR),
                          PARTS * MAX_GROUP / 4, SIDE, layout.segment_bytes / 4, columns);
                uint32_t* out =
                    scratch + layout.tile(g * layout.group_segments + i, part, plane, block);
                for (int word = 0; word < layout.segment_bytes / 4; word++) {
                    _mm512_storeu_si512(out + word * SIDE, columns[word]);
                }
            }
        }
    }
}

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
