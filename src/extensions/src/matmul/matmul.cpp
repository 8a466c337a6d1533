// matmul: argument checks and construction of the graph node.
#include "src/matmul/matmul.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

mx::array matmul(const mx::array& a, const mx::array& b, mx::StreamOrDevice s) {
    constexpr const char* NAME = "matmul";
    check_float(NAME, "a", a);
    check_same_dtype(NAME, "b", b, "a", a);
    check_not_scalar(NAME, "a", a);
    check(b.ndim() == 2, NAME, "expected b with 2 dimensions, got shape ", b.shape());
    check(b.shape(1) == a.shape(-1), NAME, "expected b with the row length of a, ", a.shape(-1),
          ", got shape ", b.shape());
    auto shape = a.shape();
    shape.back() = b.shape(0);
    return mx::array(shape, a.dtype(),
                     wrap_if_emulated(std::make_shared<Matmul>(stream_for("matmul", a.dtype(), s))),
                     {a, b});
}

std::vector<mx::Shape> Matmul::output_shapes(const std::vector<mx::array>& inputs) {
    auto shape = inputs[0].shape();
    shape.back() = inputs[1].shape(0);
    return {shape};
}

}  // namespace tiny_llm_ext
