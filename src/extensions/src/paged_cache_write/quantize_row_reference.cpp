// Quantization of a KV cache row to 8 bits: scalar reference kernel.
#include <algorithm>
#include <cmath>
#include <limits>

#include "common/int8_rows.h"

namespace tiny_llm_ext {

void quantize_row_reference(const void* x, Format format, int64_t D, void* row) {
    using Limits = std::numeric_limits<float>;
    float largest = 0;
    bool is_finite = true;
    for (int64_t d = 0; d < D; d++) {
        const float magnitude = std::fabs(load_element(x, d, format));
        is_finite = is_finite && magnitude <= Limits::max();
        largest = std::max(largest, magnitude);
    }
    float scale = is_finite ? largest / 127 : NAN;
    scale = scale < std::numeric_limits<float>::min()
                ? 0
                : scale;  // the inverse of a subnormal scale may be infinite
    const float inverse = scale > 0 ? 1 / scale : 0;
    for (int64_t d = 0; d < D; d++) {
        const float integer = is_finite ? std::nearbyint(load_element(x, d, format) * inverse) : 0;
        static_cast<int8_t*>(row)[d] = static_cast<int8_t>(integer);
    }
    memcpy(static_cast<char*>(row) + D, &scale, sizeof scale);
}

}  // namespace tiny_llm_ext
