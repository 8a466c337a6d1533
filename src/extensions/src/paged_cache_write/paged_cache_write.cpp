// paged_cache_write: argument checks and construction of the graph node.
#include "src/paged_cache_write/paged_cache_write.h"

#include "common/checks.h"
#include "common/gpu.h"
#include "common/int8_rows.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* PAGED_CACHE_WRITE = "paged_cache_write";

}  // namespace

mx::array paged_cache_write(const mx::array& pages, const mx::array& tokens, const mx::array& slots,
                            bool overwrite, mx::StreamOrDevice s) {
    check(pages.ndim() == 4, PAGED_CACHE_WRITE, "expected pages P×H×page_size×D, got shape ",
          pages.shape());
    const bool is_int8 = pages.dtype() == mx::int8;
    check(is_int8 || is_float(pages.dtype()), PAGED_CACHE_WRITE,
          "expected pages in float32, float16, bfloat16 or int8, got ", pages.dtype());
    check(is_int8 || tokens.dtype() == pages.dtype(), PAGED_CACHE_WRITE,
          "expected tokens in the dtype of the pages, ", pages.dtype(), ", got ", tokens.dtype());
    check_float(PAGED_CACHE_WRITE, "tokens", tokens);
    check(tokens.ndim() == 3 || tokens.ndim() == 4, PAGED_CACHE_WRITE,
          "expected tokens T×H×D or B×H×L×D, got shape ", tokens.shape());
    const int H = pages.shape(1), D = pages.shape(3) - (is_int8 ? INT8_SCALE_BYTES : 0);
    const bool has_size = is_int8 ? tokens.shape(-1) <= D : tokens.shape(-1) == D;
    check(has_size && tokens.shape(1) == H, PAGED_CACHE_WRITE, "expected tokens of ", H,
          " heads of size ", D, ", like pages, got shape ", tokens.shape());
    check(slots.dtype() == mx::int32, PAGED_CACHE_WRITE, "expected slots in int32, got ",
          slots.dtype());
    const bool flat = tokens.ndim() == 3;
    const mx::Shape expected =
        flat ? mx::Shape{tokens.shape(0)} : mx::Shape{tokens.shape(0), tokens.shape(2)};
    check(slots.shape() == expected, PAGED_CACHE_WRITE, "expected slots of shape ", expected,
          ", one for each token, got ", slots.shape());
    // Views T×H×D as 1×H×T×D.
    const auto by_head = flat ? mx::expand_dims(mx::swapaxes(tokens, 0, 1, s), 0, s) : tokens;
    const auto slots_by_sequence = flat ? mx::expand_dims(slots, 0, s) : slots;
    return mx::array(pages.shape(), pages.dtype(),
                     wrap_if_emulated(std::make_shared<PagedCacheWrite>(
                         stream_for("paged_cache_write", pages.dtype(), s), overwrite)),
                     {pages, by_head, slots_by_sequence});
}

}  // namespace tiny_llm_ext
