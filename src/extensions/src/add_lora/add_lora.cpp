// add_lora: argument checks and construction of the graph node.
#include "src/add_lora/add_lora.h"

#include <stdexcept>

#include "common/checks.h"
#include "common/gpu.h"

namespace tiny_llm_ext {

namespace {

// GPU fallback, composed of MLX operations: multiplies each row by all adapters' matrices and
// zeroes the ranks that do not belong to the row's adapter.
mx::array add_lora_masked(const mx::array& y, const mx::array& x, const mx::array& lora_a,
                          const mx::array& lora_b, const mx::array& rank_offsets,
                          const mx::array& adapter_ids, mx::Stream s) {
    const auto as_float32 = [s](const mx::array& array) {
        return mx::astype(array, mx::float32, s);
    };
    const int R = lora_a.shape(0), num_adapters = rank_offsets.shape(0) - 1;
    mx::Shape ids_shape = y.shape();
    ids_shape.back() = 1;
    const mx::array ids = mx::reshape(adapter_ids, ids_shape, s);
    const mx::array is_valid = mx::logical_and(mx::greater_equal(ids, mx::array(0), s),
                                               mx::less(ids, mx::array(num_adapters), s), s);
    const mx::array valid_ids = mx::where(is_valid, ids, mx::array(0), s);
    const mx::array ranks = mx::arange(0, R, mx::int32, s);
    const mx::array from = mx::take(rank_offsets, valid_ids, s);
    const mx::array to = mx::take(rank_offsets, mx::add(valid_ids, mx::array(1), s), s);
    const mx::array is_own =
        mx::logical_and(mx::greater_equal(ranks, from, s), mx::less(ranks, to, s), s);
    const mx::array h = mx::matmul(as_float32(x), mx::transpose(as_float32(lora_a), s), s);
    const mx::array masked = mx::where(mx::logical_and(is_own, is_valid, s), h, mx::array(0.0f), s);
    const mx::array update = mx::matmul(masked, as_float32(lora_b), s);
    return mx::astype(mx::add(as_float32(y), update, s), y.dtype(), s);
}

}  // namespace

mx::array add_lora(const mx::array& y, const mx::array& x, const mx::array& lora_a,
                   const mx::array& lora_b, const mx::array& rank_offsets,
                   const mx::array& adapter_ids, mx::StreamOrDevice s) {
    constexpr const char* NAME = "add_lora";
    check_float(NAME, "y", y);
    check(y.ndim() >= 1 && x.ndim() == y.ndim(), NAME, "expected y N..×O and x N..×I, got shapes ",
          y.shape(), " and ", x.shape());
    const int O = y.shape(-1), I = x.shape(-1);
    mx::Shape expected = y.shape();
    expected.back() = I;
    check(x.shape() == expected, NAME, "expected y N..×O and x N..×I, got shapes ", y.shape(),
          " and ", x.shape());
    check(lora_a.ndim() == 2 && lora_a.shape(1) == I, NAME, "expected lora_a of shape R×", I,
          ", got ", lora_a.shape());
    check(lora_b.shape() == mx::Shape{lora_a.shape(0), O}, NAME, "expected lora_b of shape (",
          lora_a.shape(0), ",", O, "), got ", lora_b.shape());
    for (const mx::array& array : {x, lora_a, lora_b}) {
        check(array.dtype() == y.dtype(), NAME, "expected x, lora_a and lora_b in the dtype of y, ",
              y.dtype(), ", got ", array.dtype());
    }
    check(
        rank_offsets.dtype() == mx::int32 && rank_offsets.ndim() == 1 && rank_offsets.shape(0) >= 1,
        NAME, "expected rank_offsets of shape (A+1), int32, got ", rank_offsets.shape(), ", ",
        rank_offsets.dtype());
    int64_t M = 1;
    for (size_t d = 0; d + 1 < y.ndim(); d++) {
        M *= y.shape(d);
    }
    check(adapter_ids.dtype() == mx::int32 && adapter_ids.ndim() == 1 && adapter_ids.shape(0) == M,
          NAME, "expected adapter_ids of shape (", M, "), int32, got ", adapter_ids.shape(), ", ",
          adapter_ids.dtype());
    const mx::Stream stream = mx::to_stream(s);
    if (rank_offsets.shape(0) == 1 || lora_a.shape(0) == 0) {
        return y;
    }
    if (is_gpu(stream)) {
        return add_lora_masked(y, x, lora_a, lora_b, rank_offsets, adapter_ids, stream);
    }
    return mx::array(y.shape(), y.dtype(), std::make_shared<AddLora>(stream),
                     {y, x, lora_a, lora_b, rank_offsets, adapter_ids});
}

void AddLora::eval_gpu(const std::vector<mx::array>&, mx::array&) {
    throw std::logic_error("[add_lora] this node has no GPU kernel");
}

}  // namespace tiny_llm_ext
