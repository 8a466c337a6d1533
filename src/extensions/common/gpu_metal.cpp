#include "common/gpu.h"

namespace tiny_llm_ext {

bool is_gpu(mx::Stream stream) { return stream.device == mx::Device::gpu; }

std::shared_ptr<mx::Primitive> wrap_if_emulated(std::shared_ptr<mx::Primitive> operation) {
    return operation;
}

}  // namespace tiny_llm_ext
