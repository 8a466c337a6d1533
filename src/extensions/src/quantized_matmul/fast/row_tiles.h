/// Loops over tiles of rows whose size is known at compile time, so that loops over a tile unroll.
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

/// Calls f.operator()<ROWS>(row) for near-equal tiles of `rows` rows, of at most MAX_ROWS rows
/// each.
template <int MAX_ROWS, typename Function>
inline void for_tiles(int64_t rows, const Function& f) {
    const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t row = rows * tile / tiles;
        with_rows<MAX_ROWS>(rows * (tile + 1) / tiles - row,
                            [&]<int ROWS>() { f.template operator()<ROWS>(row); });
    }
}

}  // namespace

}  // namespace tiny_llm_ext
