// Rows of an 8-bit KV cache: D signed integers, then their scale as float32.
//
//     x[d] ≈ row[d] · scale,   scale = max |x| / 127
//
// A row is the key or value of one token and head, of D elements; rows may end with padding, so
// that layers with different D share pages (kv_storage/paged_storage.py). Each row is quantized
// independently, when it is written, so its bits do not depend on other rows. A row with an
// infinite or NaN element has the scale NaN, so that attention to it gives NaN instead of a wrong
// number.
#pragma once

#include "common/half.h"

namespace tiny_llm_ext {

constexpr int64_t INT8_SCALE_BYTES = 4;

namespace {  // internal linkage: see common/half.h

/// Bytes per element of a format.
[[maybe_unused]] inline int64_t item_bytes(Format format) {
    return format == Format::float32 ? 4 : format == Format::int8 ? 1 : 2;
}

/// Bytes of a row of D elements, including the scale of an int8 row.
[[maybe_unused]] inline int64_t row_bytes(int64_t D, Format format) {
    return D * item_bytes(format) + (format == Format::int8 ? INT8_SCALE_BYTES : 0);
}

/// Scale of an int8 row.
[[maybe_unused]] inline float int8_scale(const void* row, int64_t D) {
    float scale;
    memcpy(&scale, static_cast<const char*>(row) + D, sizeof scale);
    return scale;
}

}  // namespace

/// Quantizes D contiguous elements of x to an int8 row. Defined in src/paged_cache_write/.
void quantize_row_reference(const void* x, Format format, int64_t D, void* row);

}  // namespace tiny_llm_ext
