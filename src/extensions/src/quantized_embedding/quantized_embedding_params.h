// Parameters of the kernels in quantized_embedding.metal.
#pragma once

namespace tiny_llm_ext {

struct QuantizedEmbeddingParams {
    int V;
    int words;            // uint32 per row of weight
    int words_per_group;  // uint32 that share a scale and a bias
    int bits;
    int ids_are_signed;
};

}  // namespace tiny_llm_ext
