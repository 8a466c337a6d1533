// cache_write: validation and graph.
#include "src/cache_write/cache_write.h"

#include "common/checks.h"

namespace tiny_llm_ext {

namespace {

constexpr const char* NAME = "cache_write";

}  // namespace

mx::array cache_write(const mx::array& buffer, const mx::array& tokens,
                      const std::vector<int>& offsets, mx::StreamOrDevice s) {
    check(buffer.ndim() == 4, NAME, "expected a buffer B×H×C×D, got shape ", buffer.shape());
    check(tokens.dtype() == buffer.dtype(), NAME, "expected tokens in the dtype of the buffer, ",
          buffer.dtype(), ", got ", tokens.dtype());
    mx::Shape expected = buffer.shape();
    expected[2] = tokens.ndim() == 4 ? tokens.shape(2) : 1;
    check(tokens.shape() == expected, NAME, "expected tokens of shape ", expected,
          ", like the buffer's but for the third dimension, got ", tokens.shape());
    check(static_cast<int>(offsets.size()) == buffer.shape(0), NAME, "expected ", buffer.shape(0),
          " offsets, one for each sequence, got ", offsets.size());
    const int last = buffer.shape(2) - tokens.shape(2);
    for (int offset : offsets) {
        check(offset == -1 || (offset >= 0 && offset <= last), NAME, "expected offsets from 0 to ",
              last, " (", buffer.shape(2), " places, ", tokens.shape(2),
              " new tokens), or -1 to leave a sequence as it is, got ", offset);
    }
    return mx::array(buffer.shape(), buffer.dtype(),
                     std::make_shared<CacheWrite>(mx::to_stream(s), offsets), {buffer, tokens});
}

bool CacheWrite::is_equivalent(const mx::Primitive& other) const {
    return offsets_ == static_cast<const CacheWrite&>(other).offsets_;
}

std::vector<mx::Shape> CacheWrite::output_shapes(const std::vector<mx::array>& inputs) {
    return {inputs[0].shape()};
}

}  // namespace tiny_llm_ext
