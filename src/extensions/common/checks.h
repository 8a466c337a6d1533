// Argument checks of operations; messages read "[operation] expected …, got …".
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "common/half.h"
#include "mlx/mlx.h"

namespace tiny_llm_ext {

/// Throws std::invalid_argument, prefixed with the operation's name, if `condition` is false.
template <typename... Parts>
void check(bool condition, const char* operation, const Parts&... parts) {
    if (!condition) {
        std::ostringstream message;
        message << "[" << operation << "] ";
        (message << ... << parts);
        throw std::invalid_argument(message.str());
    }
}

/// Whether a dtype is a 16-bit floating format.
inline bool is_half(mlx::core::Dtype dtype) {
    return dtype == mlx::core::float16 || dtype == mlx::core::bfloat16;
}

/// Whether a dtype is float32, float16 or bfloat16, the dtypes of activations.
inline bool is_float(mlx::core::Dtype dtype) {
    return dtype == mlx::core::float32 || is_half(dtype);
}

/// The Format of float32, float16 or bfloat16.
inline Format format_of(mlx::core::Dtype dtype) {
    return dtype == mlx::core::float32   ? Format::float32
           : dtype == mlx::core::float16 ? Format::float16
                                         : Format::bfloat16;
}

}  // namespace tiny_llm_ext
