// Encoder helpers shared by matmul and quantized_matmul.
#pragma once

#include "common/metal_device.h"

namespace tiny_llm_ext::metal {

/// Whether an array is aligned to 16 bytes, the widest load of the kernels. A slice of a larger
/// array may begin anywhere.
bool is_aligned(const mx::array& x);

/// `x` in row-major order, aligned to 16 bytes: itself, or a copy.
mx::array aligned(const mx::array& x, const mx::Stream& stream);

/// Encodes a launch of either operation and, with split-K, the sum of its parts.
void encode_split_k(const mx::Stream& stream,
                    const std::function<MetalLaunch(int max_threads)>& launch,
                    const std::vector<mx::array>& inputs, mx::array& out);

}  // namespace tiny_llm_ext::metal
