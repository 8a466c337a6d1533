// cache_write: new keys or values into the buffer of a cache, in place.
//
//     buffer[b, h, offsets[b] + l, d] = new[b, h, l, d]      for every b with offsets[b] ≥ 0
//
// MLX's arrays are values: writing to one gives another. But when nothing else refers to the
// old one, its memory may become the new one's. MLX calls that donation, and it is what makes
// appending a token cost a token and not the history.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// New keys or values into a cache's buffer: in place, if the caller keeps no reference to it.
///
/// buffer: B×H×C×D, any dtype. tokens: B×H×L×D of the same dtype, of any strides.
/// offsets: where each sequence's tokens go, B numbers from 0 to C − L; −1 leaves a sequence as it
/// is. They may be an array, int32. Its numbers are known too late to be refused, so any other
/// number leaves its sequence as it is, too.
/// overwrite: whether the buffer may be overwritten although commands that read it still run on a
/// GPU:
///   they come first. MLX takes them for references, and it would be copied. The caller then has no
///   other array of its memory.
/// Returns B×H×C×D: the buffer with the tokens. Throws std::invalid_argument for anything else.
mx::array cache_write(const mx::array& buffer, const mx::array& tokens, const mx::array& offsets,
                      bool overwrite = false, mx::StreamOrDevice s = {});
mx::array cache_write(const mx::array& buffer, const mx::array& tokens,
                      const std::vector<int>& offsets, bool overwrite = false,
                      mx::StreamOrDevice s = {});

/// The graph node. Inputs: buffer, tokens and offsets, of any strides.
class CacheWrite : public mx::UnaryPrimitive, public Capturable {
   public:
    CacheWrite(mx::Stream stream, bool overwrite)
        : mx::UnaryPrimitive(stream), overwrite_(overwrite) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmCacheWrite"; }
    bool is_equivalent(const mx::Primitive&) const override { return true; }
    bool writes_in_place() const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    bool overwrite_;
};

}  // namespace tiny_llm_ext
