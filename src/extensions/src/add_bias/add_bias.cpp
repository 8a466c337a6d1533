// add_bias: argument checks and construction of the graph node.
#include "src/add_bias/add_bias.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array add_bias(const mx::array& x, const mx::array& bias, mx::StreamOrDevice s) {
    constexpr const char* NAME = "add_bias";
    check_float(NAME, "x", x);
    check_not_scalar(NAME, "x", x);
    check_same_dtype(NAME, "bias", bias, "x", x);
    check(bias.shape() == mx::Shape{x.shape(-1)}, NAME, "expected bias of shape (", x.shape(-1),
          "), the last dimension of x, got ", bias.shape());
    return mx::array(
        x.shape(), x.dtype(),
        wrap_if_emulated(std::make_shared<AddBias>(stream_for("add_bias", x.dtype(), s))),
        {x, bias});
}

}  // namespace tiny_llm_ext
