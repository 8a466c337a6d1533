// add_bias: validation and graph.
#include "src/add_bias/add_bias.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array add_bias(const mx::array& x, const mx::array& bias, mx::StreamOrDevice s) {
    constexpr const char* NAME = "add_bias";
    check(is_float(x.dtype()), NAME, "expected x in float32, float16 or bfloat16, got ", x.dtype());
    check(x.ndim() >= 1, NAME, "expected x with at least one dimension, got a scalar");
    check(bias.dtype() == x.dtype(), NAME, "expected bias in the dtype of x, ", x.dtype(), ", got ",
          bias.dtype());
    check(bias.shape() == mx::Shape{x.shape(-1)}, NAME, "expected bias of shape (", x.shape(-1),
          "), the last dimension of x, got ", bias.shape());
    return mx::array(
        x.shape(), x.dtype(),
        wrap_if_emulated(std::make_shared<AddBias>(stream_for("add_bias", x.dtype(), s))),
        {x, bias});
}

}  // namespace tiny_llm_ext
