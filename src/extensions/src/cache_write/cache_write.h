// cache_write: In-place write of new keys or values to a KV cache buffer.
//
//     buffer[b, h, offsets[b] + l, d] = tokens[b, h, l, d]      for every b with offsets[b] ≥ 0
//
// MLX arrays are immutable: a write returns a new array. If nothing else references the old array,
// the new one reuses its memory (MLX calls this donation), so appending a token writes one token
// instead of copying the history.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Writes new keys or values to a cache buffer, in place if the caller keeps no reference to it.
///
/// buffer: B×H×C×D, any dtype: B sequences, H heads, C positions, D elements.
/// tokens: B×H×L×D in the dtype of buffer, any strides: L new positions of each sequence.
/// offsets: position of each sequence's first token, B integers from 0 to C − L; −1 skips the
///   sequence. In an int32 array, an out-of-range value also skips its sequence, because the values
///   are known only at evaluation, too late for an exception.
/// overwrite: whether the buffer may be overwritten while GPU commands that read it are in flight.
///   These commands run before the write, but MLX counts them as references and would copy the
///   buffer. The caller must hold no other array that shares its memory.
/// Returns B×H×C×D: the updated buffer. Throws std::invalid_argument for any other arguments.
mx::array cache_write(const mx::array& buffer, const mx::array& tokens, const mx::array& offsets,
                      bool overwrite = false, mx::StreamOrDevice s = {});
mx::array cache_write(const mx::array& buffer, const mx::array& tokens,
                      const std::vector<int>& offsets, bool overwrite = false,
                      mx::StreamOrDevice s = {});

/// Graph node of cache_write. Inputs: buffer, tokens and offsets, any strides.
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
