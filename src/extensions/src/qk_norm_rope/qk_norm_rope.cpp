// qk_norm_rope: argument checks, construction of the graph node, and CPU evaluation.
#include "src/qk_norm_rope/qk_norm_rope.h"

#include <algorithm>

#include "common/checks.h"
#include "common/fused.h"
#include "common/gpu.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/qk_norm_rope/qk_norm_rope_kernels.h"

namespace tiny_llm_ext {

static QkNormRopeKernel qk_norm_rope_simd_kernel([[maybe_unused]] InstructionSet set) {
    // [task 4.5.3 choose]
    return TINY_LLM_CHOOSE_SIMD(set, qk_norm_rope, qk_norm_rope_reference);
    // [/task 4.5.3 choose]
}

mx::array qk_norm_rope(const mx::array& x, const std::optional<mx::array>& weight, float eps,
                       const mx::array& cos, const mx::array& sin, mx::StreamOrDevice s) {
    constexpr const char* NAME = "qk_norm_rope";
    check_float(NAME, "x", x);
    check(x.ndim() == 4, NAME, "expected x with 4 dimensions, B×L×H×D, got shape ", x.shape());
    const int B = x.shape(0), L = x.shape(1), H = x.shape(2), D = x.shape(3);
    check(D % 2 == 0, NAME, "expected an even head size, the last dimension of x, got ", D);
    if (weight) {
        check(weight->shape() == mx::Shape{D}, NAME, "expected weight of shape (", D,
              "), the last dimension of x, got ", weight->shape());
        check_weight_dtype(NAME, *weight, "x", x);
    }
    check(cos.dtype() == mx::float32 && sin.dtype() == mx::float32, NAME,
          "expected cos and sin in float32, got ", cos.dtype(), " and ", sin.dtype());
    const int W = cos.ndim() == 3 ? cos.shape(2) : 0;
    const mx::Shape shared = {1, L, W}, own = {B, L, W};
    check((cos.shape() == shared || cos.shape() == own) && W >= std::min(1, D / 2) && W <= D / 2,
          NAME, "expected cos of shape (", B, ",", L, ",W) or (1,", L, ",W), W from 1 to ", D / 2,
          ", got ", cos.shape());
    check_same_shape(NAME, "sin", sin, "cos", cos);
    return mx::array({B, H, L, D}, x.dtype(),
                     wrap_if_emulated(std::make_shared<QkNormRope>(
                         stream_for("qk_norm_rope", x.dtype(), s), eps, weight.has_value())),
                     {x, weight.value_or(x), cos, sin});
}

bool QkNormRope::is_equivalent(const mx::Primitive& other) const {
    const auto& rope = static_cast<const QkNormRope&>(other);
    return eps_ == rope.eps_ && normalizes_ == rope.normalizes_;
}

std::vector<mx::Shape> QkNormRope::output_shapes(const std::vector<mx::array>& inputs) {
    const auto& x = inputs[0];
    return {{x.shape(0), x.shape(2), x.shape(1), x.shape(3)}};
}

QkNormRopeParams QkNormRope::params_of(const mx::array& x, const mx::array& cos) const {
    const int L = x.shape(1), W = cos.shape(2);
    const auto stride = [&](int dim) { return static_cast<long>(x.strides(dim)); };
    return {
        .B = x.shape(0),
        .L = L,
        .H = x.shape(2),
        .D = x.shape(3),
        .W = W,
        .eps = eps_,
        .x_strides = {stride(0), stride(1), stride(2)},
        .angle_stride = cos.shape(0) == 1 ? 0 : static_cast<long>(L) * W,
        .normalizes = normalizes_,
    };
}

void QkNormRope::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    void* const memory = allocate(out);
    if (out.size() == 0) {
        return;
    }
    const bool heads_are_rows = inputs[0].strides(3) == 1;
    const mx::array x = heads_are_rows ? inputs[0] : row_contiguous(inputs[0], stream());
    const mx::array cos = row_contiguous(inputs[2], stream());
    const QkNormRopeJob job = {
        .sizes = params_of(x, cos),
        .format = format_of(x.dtype()),
        .weight_format = format_of(inputs[1].dtype()),
        .x = x.data<char>(),
        .weight = normalizes_ ? row_contiguous(inputs[1], stream()).data<char>() : nullptr,
        .cos = cos.data<float>(),
        .sin = row_contiguous(inputs[3], stream()).data<float>(),
        .out = memory,
    };
    const auto kernel =
        fused_kernel<QkNormRopeKernel>(qk_norm_rope_simd_kernel, qk_norm_rope_reference);
    add_task(stream(), [job, kernel] {
        const QkNormRopeParams& sizes = job.sizes;
        for_rows(static_cast<int64_t>(sizes.B) * sizes.L, static_cast<int64_t>(sizes.H) * sizes.D,
                 [&](int64_t first, int64_t last) { kernel(job, first, last); });
    });
}

}  // namespace tiny_llm_ext
