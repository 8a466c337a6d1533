// Parameters of the kernels in quantized_embedding.metal.
#pragma once

namespace tiny_llm_ext {

struct QuantizedEmbeddingParams {
    int V;
    int words;            // per row of weight
    int words_per_group;  // words that share a scale and a bias
    int bits;
    int ids_are_signed;
};

}  // namespace tiny_llm_ext
