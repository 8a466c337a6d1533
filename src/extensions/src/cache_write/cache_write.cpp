// cache_write: argument checks and construction of the graph node.
#include "src/cache_write/cache_write.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* CACHE_WRITE = "cache_write";

void check_buffer(const mx::array& buffer, const mx::array& tokens, int64_t offsets) {
    check(buffer.ndim() == 4, CACHE_WRITE, "expected a buffer B×H×C×D, got shape ", buffer.shape());
    check(tokens.dtype() == buffer.dtype(), CACHE_WRITE,
          "expected tokens in the dtype of the buffer, ", buffer.dtype(), ", got ", tokens.dtype());
    mx::Shape expected = buffer.shape();
    expected[2] = tokens.ndim() == 4 ? tokens.shape(2) : 1;
    check(tokens.shape() == expected, CACHE_WRITE, "expected tokens of shape ", expected,
          " (the buffer's shape except for the third dimension), got ", tokens.shape());
    check(offsets == buffer.shape(0), CACHE_WRITE, "expected ", buffer.shape(0),
          " offsets, one for each sequence, got ", offsets);
}

}  // namespace

mx::array cache_write(const mx::array& buffer, const mx::array& tokens, const mx::array& offsets,
                      bool overwrite, mx::StreamOrDevice s) {
    check(offsets.dtype() == mx::int32 && offsets.ndim() == 1, CACHE_WRITE,
          "expected offsets in int32, one for each sequence, got ", offsets.dtype(), " of shape ",
          offsets.shape());
    check_buffer(buffer, tokens, offsets.size());
    return mx::array(buffer.shape(), buffer.dtype(),
                     wrap_if_emulated(std::make_shared<CacheWrite>(
                         stream_for(CACHE_WRITE, buffer.dtype(), s), overwrite)),
                     {buffer, tokens, offsets});
}

mx::array cache_write(const mx::array& buffer, const mx::array& tokens,
                      const std::vector<int>& offsets, bool overwrite, mx::StreamOrDevice s) {
    check_buffer(buffer, tokens, static_cast<int64_t>(offsets.size()));
    const int last = buffer.shape(2) - tokens.shape(2);
    for (int offset : offsets) {
        check(offset == -1 || (offset >= 0 && offset <= last), CACHE_WRITE,
              "expected offsets from 0 to ", last, " (", buffer.shape(2), " positions, ",
              tokens.shape(2), " new tokens), or -1 to skip a sequence, got ", offset);
    }
    return cache_write(buffer, tokens,
                       mx::array(offsets.begin(), {static_cast<int>(offsets.size())}, mx::int32),
                       overwrite, s);
}

std::vector<mx::Shape> CacheWrite::output_shapes(const std::vector<mx::array>& inputs) {
    return {inputs[0].shape()};
}

}  // namespace tiny_llm_ext
