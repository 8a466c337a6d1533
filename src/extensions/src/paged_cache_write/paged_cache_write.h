// paged_cache_write: In-place write of new keys or values to pages.
//
// A pool of P pages has P · page_size token slots. Slot i is row i % page_size of page
// i / page_size, in every head:
//
//     pages[slots[t] / page_size, h, slots[t] % page_size, d] = tokens[t, h, d]
//
// The pool is written in place if nothing else references the input array (MLX's donation, see
// cache_write.h), because writing a token must not copy gigabytes.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Writes new keys or values to pages, in place if the caller keeps no reference to the pages, or
/// sets `overwrite`.
///
/// pages: P×H×page_size×D, float32, float16 or bfloat16; copied unless row-contiguous. Or
///   P×H×page_size×(D + 4 or more) int8: 8-bit rows (common/int8_rows.h), to which tokens are
///   quantized.
/// tokens: T×H×D or B×H×L×D in the dtype of pages, or any float dtype for int8 pages; any strides.
/// slots: T, or B×L, int32: distinct slots, one per token. A token with a slot outside
///   0 … P · page_size − 1 is not written; −1 marks padding (an idle row of a batch).
/// overwrite: whether the pages may be overwritten although tasks or GPU commands that read them
/// are
///   in flight, or other arrays share their memory. Earlier tasks and commands run before the
///   write, but MLX counts them as references and would copy the pages. Later ones may read other
///   pages through the other arrays.
///
/// Returns the updated pages.
/// Throws std::invalid_argument for any other arguments.
mx::array paged_cache_write(const mx::array& pages, const mx::array& tokens, const mx::array& slots,
                            bool overwrite = false, mx::StreamOrDevice s = {});

/// Graph node of paged_cache_write. Validated inputs, any strides: pages P×H×page_size×D, tokens
/// B×H×L×D (T tokens are B = 1, L = T) and slots B×L.
class PagedCacheWrite : public mx::UnaryPrimitive, public Capturable {
   public:
    PagedCacheWrite(mx::Stream stream, bool overwrite)
        : mx::UnaryPrimitive(stream), overwrite_(overwrite) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;

    const char* name() const override { return "TinyLlmPagedCacheWrite"; }
    bool is_equivalent(const mx::Primitive&) const override { return true; }
    bool writes_in_place() const override { return true; }
    bool overwrites_shared_memory() const override { return overwrite_; }
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override {
        return {inputs[0].shape()};
    }

   private:
    bool overwrite_;
};

}  // namespace tiny_llm_ext
