// row_dot: a primitive with nothing around it. Day 2.2 of the course.
#include <nanobind/nanobind.h>
#include <nanobind/stl/variant.h>

#include <memory>
#include <stdexcept>
#include <vector>

#include "mlx/allocator.h"
#include "mlx/backend/cpu/encoder.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace mx = mlx::core;
namespace nb = nanobind;
using namespace nb::literals;

// The node: the inputs are two row-contiguous float32 arrays N..×D, the output is N...
// [task 2.2.0 primitive]
class RowDot : public mx::UnaryPrimitive {
   public:
    explicit RowDot(mx::Stream stream) : mx::UnaryPrimitive(stream) {}

    void eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    void eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) override;
    const char* name() const override { return "RowDot"; }
};
// [/task 2.2.0 primitive]

// Scalar product of each row: x, y N..×D float32 -> N... Computes nothing yet: returns an array
// with a RowDot and its inputs. Throws std::invalid_argument for other dtypes or for different
// shapes.
mx::array row_dot(const mx::array& x, const mx::array& y, mx::StreamOrDevice s) {
    // [task 2.2.0 function]
    if (x.dtype() != mx::float32 || y.dtype() != mx::float32) {
        throw std::invalid_argument("[row_dot] expected float32");
    }
    if (x.ndim() == 0 || x.shape() != y.shape()) {
        throw std::invalid_argument("[row_dot] expected two arrays of one shape N..×D");
    }
    auto shape = x.shape();
    shape.pop_back();
    return mx::array(shape, mx::float32, std::make_shared<RowDot>(mx::to_stream(s)),
                     {mx::contiguous(x, false, s), mx::contiguous(y, false, s)});
    // [/task 2.2.0 function]
}

// Allocates the output, and leaves the sums to the stream's thread: the inputs may not be computed
// yet. Sums in the order of the elements.
void RowDot::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    // [task 2.2.0 eval]
    out.set_data(mx::allocator::malloc(out.nbytes()));
    mx::cpu::get_command_encoder(stream()).dispatch(
        [x = inputs[0].data<float>(), y = inputs[1].data<float>(), z = out.data<float>(),
         rows = out.size(), D = static_cast<size_t>(inputs[0].shape(-1))] {
            for (size_t row = 0; row < rows; row++) {
                float sum = 0;
                for (size_t i = 0; i < D; i++) {
                    sum += x[row * D + i] * y[row * D + i];
                }
                z[row] = sum;
            }
        });
    // [/task 2.2.0 eval]
}

void RowDot::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    throw std::runtime_error("[row_dot] has no GPU kernel: pass stream=mx.cpu");
}

NB_MODULE(_row_dot, m) {
    // [task 2.2.0 binding]
    m.def("row_dot", &row_dot, "x"_a, "y"_a, nb::kw_only(), "stream"_a = nb::none());
    // [/task 2.2.0 binding]
}
