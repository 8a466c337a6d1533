// Tile sizes of the matrix multiplications, shared by kernels and launches.
#pragma once

namespace tiny_llm_ext {

// An enum, because Metal requires the constant address space for variables at namespace scope.
enum {
    // Elements of a row staged at a time. Divides every quantization group size.
    TILE_K = 32,
    // Elements of a row per partial sum, the unit of split-K.
    TILE_PART = 512,
};

}  // namespace tiny_llm_ext
