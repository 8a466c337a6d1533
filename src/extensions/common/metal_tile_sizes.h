// Sizes of the tiled matrix multiplications, for the kernels and for their launches.
#pragma once

namespace tiny_llm_ext {

// An enum, because Metal wants variables outside of functions in the constant address space.
enum {
    // Numbers of a row that are staged at a time. Divides every group of quantized weights.
    TILE_K = 32,
    // Numbers of a row in a part: a sum of its own, which one threadgroup may compute alone.
    TILE_PART = 512,
};

}  // namespace tiny_llm_ext
