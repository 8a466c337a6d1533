#include "common/gpu.h"

namespace tiny_llm_ext {

bool is_gpu(mx::Stream stream) { return stream.device == mx::Device::gpu; }

mx::array placed(mx::array x) { return x; }

std::vector<mx::array> placed(const std::vector<mx::array>& outputs) { return outputs; }

std::pair<mx::array, mx::array> placed(const std::pair<mx::array, mx::array>& outputs) {
    return outputs;
}

}  // namespace tiny_llm_ext
