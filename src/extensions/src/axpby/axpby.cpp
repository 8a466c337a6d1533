// axpby: argument checks, construction of the graph node, derivatives. The arithmetic is in the CPU
// and GPU files.
#include "src/axpby/axpby.h"

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

namespace {

// Whether shapes broadcast as in NumPy: counted from the last dimension, two sizes are equal, or
// one of them is 1 or missing.
bool can_broadcast(const mx::Shape& x, const mx::Shape& y) {
    for (size_t i = 1; i <= x.size() && i <= y.size(); i++) {
        const int a = x[x.size() - i], b = y[y.size() - i];
        if (a != b && a != 1 && b != 1) {
            return false;
        }
    }
    return true;
}

}  // namespace

mx::array axpby(const mx::array& x, const mx::array& y, float alpha, float beta,
                mx::StreamOrDevice s) {
    auto dtype = mx::promote_types(x.dtype(), y.dtype());
    check(dtype != mx::complex64, "axpby", "expected real dtypes, got complex64");
    check(can_broadcast(x.shape(), y.shape()), "axpby",
          "expected shapes that can be broadcast, got ", x.shape(), " and ", y.shape());
    if (!mx::issubdtype(dtype, mx::floating) || dtype == mx::float64) {
        dtype = mx::float32;
    }
    auto inputs = mx::broadcast_arrays({mx::astype(x, dtype, s), mx::astype(y, dtype, s)}, s);
    // Broadcasting creates strides of zero, but the kernels need contiguous memory.
    for (auto& input : inputs) {
        input = mx::contiguous(input, /*allow_col_major=*/false, s);
    }
    auto shape = inputs[0].shape();
    return mx::array(
        shape, dtype,
        wrap_if_emulated(std::make_shared<Axpby>(stream_for("axpby", dtype, s), alpha, beta)),
        inputs);
}

// z = alpha · x + beta · y is linear, so its derivative in a direction is axpby of that direction.
std::vector<mx::array> Axpby::jvp(const std::vector<mx::array>& primals,
                                  const std::vector<mx::array>& tangents,
                                  const std::vector<int>& argnums) {
    auto coefficient = [&](int argnum) { return argnum == 0 ? alpha_ : beta_; };
    if (argnums.size() == 2) {
        return {axpby(tangents[0], tangents[1], coefficient(argnums[0]), coefficient(argnums[1]),
                      stream())};
    }
    auto factor = mx::array(coefficient(argnums[0]), tangents[0].dtype());
    return {mx::multiply(factor, tangents[0], stream())};
}

std::vector<mx::array> Axpby::vjp(const std::vector<mx::array>& primals,
                                  const std::vector<mx::array>& cotangents,
                                  const std::vector<int>& argnums,
                                  const std::vector<mx::array>& outputs) {
    std::vector<mx::array> gradients;
    for (int argnum : argnums) {
        auto factor = mx::array(argnum == 0 ? alpha_ : beta_, cotangents[0].dtype());
        gradients.push_back(mx::multiply(factor, cotangents[0], stream()));
    }
    return gradients;
}

std::pair<std::vector<mx::array>, std::vector<int>> Axpby::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
    // Moves each input's mapped axis to the front, where broadcasting aligns them. An unmapped
    // input (axis −1) is broadcast along it.
    auto to_front = [&](int i) {
        return axes[i] < 0 ? inputs[i] : mx::moveaxis(inputs[i], axes[i], 0, stream());
    };
    return {{axpby(to_front(0), to_front(1), alpha_, beta_, stream())}, {0}};
}

bool Axpby::is_equivalent(const mx::Primitive& other) const {
    const auto& axpby = static_cast<const Axpby&>(other);
    return alpha_ == axpby.alpha_ && beta_ == axpby.beta_;
}

std::vector<mx::Shape> Axpby::output_shapes(const std::vector<mx::array>& inputs) {
    return {inputs[0].shape()};
}

}  // namespace tiny_llm_ext
