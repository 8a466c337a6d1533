// What the kernels of quantized_embedding.metal are told.
#pragma once

namespace tiny_llm_ext {

struct QuantizedEmbeddingParams {
    int N;             // ids
    int V;             // rows of the table
    int E;             // numbers in a row
    int ids_signed;    // 1: a negative id counts from the end of the table
};

}  // namespace tiny_llm_ext
