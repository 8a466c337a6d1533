// What a build for an MLX without Metal says when an operation is asked to run on the GPU. All such
// stubs are here, so that no other file asks which backends were built.
#include <stdexcept>
#include <string>

#include "common/metal_device.h"
#include "common/metal_run.h"
#include "src/axpby/axpby.h"
#include "src/cache_write/cache_write.h"
#include "src/flash_attention/flash_attention.h"
#include "src/matmul/matmul.h"
#include "src/paged_attention/paged_attention.h"
#include "src/paged_cache_write/paged_cache_write.h"
#include "src/qk_norm_rope/qk_norm_rope.h"
#include "src/quantized_embedding/quantized_embedding.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/rms_norm/rms_norm.h"
#include "src/swiglu/swiglu.h"

namespace tiny_llm_ext {

std::string metal::library_path() { return ""; }

[[noreturn]] static void refuse(const std::string& operation) {
    throw std::runtime_error("[" + operation +
                             "] this build has no GPU kernel; pass stream=mx.cpu, or use "
                             "mx.set_default_device(mx.cpu).");
}

void MetalRun::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) { refuse("run"); }
void Axpby::eval_gpu(const std::vector<mx::array>&, mx::array&) { refuse("axpby"); }
void CacheWrite::eval_gpu(const std::vector<mx::array>&, mx::array&) { refuse("cache_write"); }
void FlashAttention::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    refuse("flash_attention");
}
void Matmul::eval_gpu(const std::vector<mx::array>&, mx::array&) { refuse("matmul"); }
void PagedAttention::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    refuse("paged_attention");
}
void PagedCacheWrite::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    refuse("paged_cache_write");
}
void QkNormRope::eval_gpu(const std::vector<mx::array>&, mx::array&) { refuse("qk_norm_rope"); }
void QuantizedEmbedding::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    refuse("quantized_embedding");
}
void QuantizedMatmul::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    refuse("quantized_matmul");
}
void RmsNorm::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
    refuse("rms_norm");
}
void Swiglu::eval_gpu(const std::vector<mx::array>&, mx::array&) { refuse("swiglu"); }

}  // namespace tiny_llm_ext
