// Weights as AMX tiles of bytes.
//
// A tile of activations has one row of bytes (byte_planes.h) per row. A tile of weights has one
// output per column: its words of four bytes from a row of b, stacked vertically. Words are
// transposed to columns first; then 4-bit weights are unpacked to bytes.
//
// A *unit* is the shortest sequence of weights that consists of complete groups and of complete
// vectors of b.
#pragma once

#include "common/amx.h"
#include "src/quantized_matmul/fast/byte_planes.h"

namespace tiny_llm_ext::TINY_LLM_ISA {

namespace {

constexpr int PANEL_TILES = 4;  // tiles of outputs unpacked together
constexpr int PANEL_OUTPUTS = QUANTIZED_MATMUL_PANEL;
constexpr int MAX_STEPS = 2;  // tiles per unit, and per group
static_assert(PANEL_OUTPUTS == PANEL_TILES * TILE_SIDE);

// Division of a row of b into units.
struct Units {
    int vectors;    // vectors of b per unit: 1 or 2
    int groups;     // groups per unit: 4, 2 or 1; the last unit may have fewer
    int64_t count;  // units per row of b

    explicit Units(const PlanesLayout& layout)
        : vectors(layout.group_bytes > VECTOR ? layout.group_bytes / VECTOR : 1),
          groups(layout.group_bytes < VECTOR ? VECTOR / layout.group_bytes : 1),
          count((layout.groups + groups - 1) / groups) {}
};

// --- weights ------------------------------------------------------------------------------------

// An unpacked unit of a panel: tile of outputs × word.
struct Weights {
    alignas(64) __m512i words[PANEL_TILES][MAX_STEPS * TILE_SIDE];
};

// Unpacks a word of 16 outputs to bytes, stored `distance` words apart.
template <typename WeightFormat>
inline void unpack_word(__m512i bytes, int distance, __m512i* out) {
    __m512i parts[WeightFormat::PARTS];
    WeightFormat::unpack(bytes, parts);
    for (int part = 0; part < WeightFormat::PARTS; part++) {
        out[part * distance] = parts[part];
    }
}

// Number of words in vector number `vector` of a row: TILE_SIDE, or fewer in the last one.
inline int words_in(const PlanesLayout& layout, int64_t vector) {
    const int64_t left = (layout.row_bytes - vector * VECTOR) / 4;
    return left < TILE_SIDE ? static_cast<int>(left) : TILE_SIDE;
}

// Unpacks a unit of the `outputs` rows of b that begin at `b`. Words past the row, which are never
// multiplied, and tiles past the panel, which are never stored, are left unchanged.
template <typename WeightFormat>
inline void unpack_unit(const PlanesLayout& layout, const Units& units, const uint32_t* b,
                        int64_t unit, int outputs, Weights& weights) {
    const int64_t tile_bytes = TILE_SIDE * layout.row_bytes;
    const int tiles = (outputs + TILE_SIDE - 1) / TILE_SIDE;
    const int group_words = layout.group_bytes / 4;  // a power of two
    for (int v = 0; v < units.vectors; v++) {
        const int64_t vector = unit * units.vectors + v;
        const int words = words_in(layout, vector);
        const char* in = (const char*)b + vector * TILE_SIDE * VECTOR;
        for (int word = 0; word < words; word++) {
            const int in_earlier_groups = word & -group_words;
            const int to = v * TILE_SIDE + word + in_earlier_groups * (WeightFormat::PARTS - 1);
            for (int tile = 0; tile < tiles; tile++) {
                unpack_word<WeightFormat>(
                    _mm512_loadu_si512(in + tile * tile_bytes + word * VECTOR), group_words,
                    weights.words[tile] + to);
            }
        }
    }
    compiler_barrier();
}

// Prefetches weights a fixed distance ahead, during the multiplications of a unit. Each
// tile is a separate sequential stream. A core has few outstanding cache misses: prefetches during
// the unpacking would stall it and leave memory idle during the multiplications.
class UnitPrefetcher {
   public:
    // calls: at least this many calls of prefetch_next follow.
    UnitPrefetcher(const PlanesLayout& layout, const Units& units, const uint32_t* b, int64_t unit,
                   int calls)
        : tile_bytes_(TILE_SIDE * layout.row_bytes),
          words_left_(units.vectors * TILE_SIDE),
          words_per_call_((words_left_ + calls - 1) / calls) {
        const int64_t byte = unit * units.vectors * TILE_SIDE * VECTOR;
        next_ = address_to_prefetch((const char*)b + byte, byte, tile_bytes_, PANEL_TILES);
    }
    // Prefetches nothing.
    UnitPrefetcher() = default;

    __attribute__((always_inline)) void prefetch_next() {
        for (int i = 0; i < words_per_call_ && words_left_ > 0;
             i++, words_left_--, next_ += VECTOR) {
            for (int tile = 0; tile < PANEL_TILES; tile++) {
                _mm_prefetch(next_ + tile * tile_bytes_, _MM_HINT_T0);
            }
        }
    }

   private:
    int64_t tile_bytes_ = 0;
    int words_left_ = 0;
    int words_per_call_ = 0;
    const char* next_ = nullptr;
};

}  // namespace

}  // namespace tiny_llm_ext::TINY_LLM_ISA
