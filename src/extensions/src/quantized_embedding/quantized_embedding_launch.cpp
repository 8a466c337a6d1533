#include "src/quantized_embedding/quantized_embedding_launch.h"

#include "src/quantized_embedding/quantized_embedding_params.h"

namespace tiny_llm_ext {

MetalLaunch quantized_embedding_launch(int64_t N, int V, int E, int group_size, int bits,
                                       bool ids_are_signed, Format format, int max_threads) {
    const QuantizedEmbeddingParams params = {.V = V,
                                             .words = E / 32 * bits,
                                             .words_per_group = group_size / 32 * bits,
                                             .bits = bits,
                                             .ids_are_signed = ids_are_signed};
    return row_launch(kernel_name("quantized_embedding_words", format), N, params.words, 256,
                      max_threads, params);
}

}  // namespace tiny_llm_ext
