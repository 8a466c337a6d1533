/// Loops over tiles of rows, whose size is a template argument so that loops over a tile unroll.
#pragma once

#include <cstdint>

namespace tiny_llm_ext {

namespace {

/// Calls f.operator()<ROWS>() with ROWS = rows, from 1 to MAX_ROWS.
template <int MAX_ROWS, typename Function>
inline void with_rows(int64_t rows, const Function& f) {
    if (rows == MAX_ROWS) {
        f.template operator()<MAX_ROWS>();
    } else if constexpr (MAX_ROWS > 1) {
        with_rows<MAX_ROWS - 1>(rows, f);
    }
}

/// Calls f.operator()<ROWS>(row) for near-equal tiles of `rows` ≥ 1 rows, of at most MAX_ROWS rows
/// each.
template <int MAX_ROWS, typename Function>
inline void for_tiles(int64_t rows, const Function& f) {
    const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
    // Divides once: a 64-bit division can take 40 or more cycles before Ice Lake and Zen 2.
    const int64_t smaller = rows / tiles, larger_tiles = rows % tiles;
    int64_t row = 0;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t size = smaller + (tile < larger_tiles);
        with_rows<MAX_ROWS>(size, [&]<int ROWS>() { f.template operator()<ROWS>(row); });
        row += size;
    }
}

}  // namespace

}  // namespace tiny_llm_ext
