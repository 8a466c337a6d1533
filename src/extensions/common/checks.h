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

/// Checks that an argument has the dtype float32, float16 or bfloat16.
inline void check_float(const char* operation, const char* name, const mlx::core::array& x) {
    check(is_float(x.dtype()), operation, "expected ", name,
          " in float32, float16 or bfloat16, got ", x.dtype());
}

/// Checks that an argument has the same dtype as another argument.
inline void check_same_dtype(const char* operation, const char* name, const mlx::core::array& x,
                             const char* other_name, const mlx::core::array& other) {
    check(x.dtype() == other.dtype(), operation, "expected ", name, " in the dtype of ", other_name,
          ", ", other.dtype(), ", got ", x.dtype());
}

/// Checks that an argument has the same shape as another argument.
inline void check_same_shape(const char* operation, const char* name, const mlx::core::array& x,
                             const char* other_name, const mlx::core::array& other) {
    check(x.shape() == other.shape(), operation, "expected ", name, " of the shape of ", other_name,
          ", ", other.shape(), ", got ", x.shape());
}

/// Checks that a norm's weight is float32 or has the dtype of another argument.
inline void check_weight_dtype(const char* operation, const mlx::core::array& weight,
                               const char* other_name, const mlx::core::array& other) {
    check(weight.dtype() == mlx::core::float32 || weight.dtype() == other.dtype(), operation,
          "expected weight in float32 or the dtype of ", other_name, ", ", other.dtype(), ", got ",
          weight.dtype());
}

/// Checks an optional attention sink per query head.
inline void check_sinks(const char* operation, const mlx::core::array& sinks, int H_q) {
    const mlx::core::Shape heads = {H_q};
    check(sinks.dtype() == mlx::core::float32 && sinks.shape() == heads, operation,
          "expected sinks in float32 of shape ", heads, ", got ", sinks.dtype(), " of shape ",
          sinks.shape());
}

/// Checks that an argument has at least one dimension.
inline void check_not_scalar(const char* operation, const char* name, const mlx::core::array& x) {
    check(x.ndim() >= 1, operation, "expected ", name,
          " with at least one dimension, got a scalar");
}

/// Converts the MLX dtype float32, float16 or bfloat16 to a Format.
inline Format format_of(mlx::core::Dtype dtype) {
    return dtype == mlx::core::float32   ? Format::float32
           : dtype == mlx::core::float16 ? Format::float16
                                         : Format::bfloat16;
}

}  // namespace tiny_llm_ext
