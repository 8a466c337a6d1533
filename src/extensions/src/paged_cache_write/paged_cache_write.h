// paged_cache_write: new keys or values into pages, in place.
//
// A pool of P pages has P · page_size places for a token. Place i is row i % page_size of page
// i / page_size, in every head:
//
//     pages[slots[t] / page_size, h, slots[t] % page_size, d] = tokens[t, h, d]
//
// The pool is written in place if nothing else refers to the array that was given up for it: MLX's
// donation, as in cache_write.h. A pool of gigabytes is then not copied to write a token.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// New keys or values into pages: in place, if the caller keeps no reference to them.
///
/// pages: P×H×page_size×D, float32, float16 or bfloat16; row-contiguous, or it is copied.
/// tokens: T×H×D or B×H×L×D of the same dtype, of any strides.
/// slots: T, or B×L, int32: each token's place, all different. A token whose slot is not in
///   0 … P · page_size − 1 is not written; −1 says so on purpose (an idle row of a batch).
/// overwrite: whether the pages may be overwritten although commands that read them still run on a
/// GPU:
///   they come first. MLX takes them for references, and they would be copied. The caller then has
///   no other array of their memory.
///
/// Returns P×H×page_size×D: the pages with the tokens.
/// Throws std::invalid_argument for anything else.
mx::array paged_cache_write(const mx::array& pages, const mx::array& tokens, const mx::array& slots,
                            bool overwrite = false, mx::StreamOrDevice s = {});

/// The graph node. Inputs, checked, of any strides: pages P×H×page_size×D, tokens B×H×L×D (T tokens
/// are B = 1, L = T) and slots B×L.
class PagedCacheWrite : public mx::UnaryPrimitive, public Capturable {
   public:
    PagedCacheWrite(mx::Stream stream, bool overwrite)
        : mx::UnaryPrimitive(stream), overwrite_(overwrite) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmPagedCacheWrite"; }
    bool is_equivalent(const mx::Primitive&) const override { return true; }
    bool writes_in_place() const override { return true; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[0].shape()};
    }

   private:
    bool overwrite_;
};

}  // namespace tiny_llm_ext
