// axpby on the CPU: one loop over all elements.
#include "common/tasks.h"
#include "mlx/allocator.h"
#include "src/axpby/axpby.h"

namespace tiny_llm_ext {

namespace {

// z[i] = alpha · x[i] + beta · y[i] for i < size, in float32, rounded once to T.
template <typename T>
void axpby_kernel(const T* x, const T* y, T* z, size_t size, float alpha, float beta) {
    // [task 1.7.2 kernel]
    for (size_t i = 0; i < size; i++) {
        z[i] = static_cast<T>(alpha * static_cast<float>(x[i]) + beta * static_cast<float>(y[i]));
    }
    // [/task 1.7.2 kernel]
}

// eval_cpu allocates the output immediately and enqueues the loop on the stream. The arrays are
// kept alive until the loop has run, so plain pointers may be captured.
template <typename T>
void dispatch(const mx::array& x, const mx::array& y, mx::array& out, float alpha, float beta,
              mx::Stream stream) {
    out.set_data(mx::allocator::malloc(out.nbytes()));
    add_task(stream, [x = x.data<T>(), y = y.data<T>(), z = out.data<T>(), size = out.size(), alpha,
                      beta] { axpby_kernel(x, y, z, size, alpha, beta); });
}

}  // namespace

void Axpby::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const auto& x = inputs[0];
    const auto& y = inputs[1];
    if (out.dtype() == mx::float32) {
        dispatch<float>(x, y, out, alpha_, beta_, stream());
    } else if (out.dtype() == mx::float16) {
        dispatch<mx::float16_t>(x, y, out, alpha_, beta_, stream());
    } else {
        dispatch<mx::bfloat16_t>(x, y, out, alpha_, beta_, stream());
    }
}

}  // namespace tiny_llm_ext
