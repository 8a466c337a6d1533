// cache_write: new keys or values into the buffer of a cache, in place.
//
//     buffer[b, h, offsets[b] + l, d] = new[b, h, l, d]      for every sequence b with an offset ≥
//     0
//
// MLX's arrays are values: whoever writes to one gets another. But when nothing else refers to the
// old one, its memory may become the new one's. MLX calls that donation, and it is what makes
// appending a token cost a token and not the history.
#pragma once

#include <vector>

#include "common/recordable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// A buffer with new tokens written into it; the same memory if the caller gives up the old one.
///
/// buffer: B×H×C×D, any dtype. tokens: B×H×L×D of the same dtype, of any strides.
/// offsets: where each sequence's tokens go, B numbers from 0 to C − L; −1 leaves a sequence as it
/// is. An array's, int32, are not known before it is computed: any other number is as −1.
/// Returns B×H×C×D. Throws std::invalid_argument for anything else.
mx::array cache_write(const mx::array& buffer, const mx::array& tokens, const mx::array& offsets,
                      mx::StreamOrDevice s = {});
mx::array cache_write(const mx::array& buffer, const mx::array& tokens,
                      const std::vector<int>& offsets, mx::StreamOrDevice s = {});

/// The graph node. Inputs: buffer, tokens and offsets, of any strides.
class CacheWrite : public mx::UnaryPrimitive, public Recordable {
   public:
    explicit CacheWrite(mx::Stream stream) : mx::UnaryPrimitive(stream) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmCacheWrite"; }
    bool is_equivalent(const mx::Primitive&) const override { return true; }
    bool writes_in_place() const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
};

}  // namespace tiny_llm_ext
