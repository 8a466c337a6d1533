// Encoding of GPU commands, shared by matmul and quantized_matmul.
#pragma once

#include "common/metal_device.h"

namespace tiny_llm_ext::metal {

/// Whether an array is aligned to 16 bytes, as the kernels' widest loads require. A slice of a
/// larger array may not be aligned.
bool is_aligned(const mx::array& x);

/// Returns x if it is aligned to 16 bytes, otherwise a row-major copy.
mx::array aligned(const mx::array& x, const mx::Stream& stream);

/// Encodes a launch of matmul or quantized_matmul and, with split-K, the launch that adds its
/// partial sums.
void encode_split_k(const mx::Stream& stream,
                    const std::function<MetalLaunch(int max_threads)>& launch,
                    const std::vector<mx::array>& inputs, mx::array& out);

}  // namespace tiny_llm_ext::metal
