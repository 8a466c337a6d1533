// What the encoders of matmul and quantized_matmul share.
#pragma once

#include "common/metal_device.h"

namespace tiny_llm_ext::metal {

/// Whether an array begins on a multiple of 16 bytes, the widest that kernels read at a time. Rows
/// of a larger array may begin anywhere.
bool is_aligned(const mx::array& x);

/// `x`, row-major, itself if it is aligned, or a copy that is.
mx::array aligned(const mx::array& x, const mx::Stream& stream);

/// Encodes a launch of either operation, with its parts and their sum if it has several.
void encode_in_parts(const mx::Stream& stream,
                     const std::function<MetalLaunch(int max_threads)>& launch,
                     const std::vector<mx::array>& inputs, mx::array& out);

}  // namespace tiny_llm_ext::metal
