// add_bias on the GPU: four adjacent elements per thread. Contract: add_bias.h.
#include "common/metal_map_rows.h"

struct AddBias {
    template <typename T>
    static float apply(float x, float bias) {
        return x + bias;
    }
};

INSTANTIATE_MAP_ROWS(float32, float, add_bias, AddBias)
INSTANTIATE_MAP_ROWS(float16, half, add_bias, AddBias)
INSTANTIATE_MAP_ROWS(bfloat16, bfloat, add_bias, AddBias)
