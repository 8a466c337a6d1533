#include "common/rows.h"

#include <cstring>

#include "common/tasks.h"
#include "mlx/allocator.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

namespace {

// Copies the elements of dimensions ≥ `dim` to row-major order; returns the end of the destination.
template <typename T>
T* copy(const T* from, T* to, const mx::Shape& shape, const mx::Strides& strides, size_t dim) {
    if (dim == shape.size()) {
        *to = *from;
        return to + 1;
    }
    for (int i = 0; i < shape[dim]; i++) {
        to = copy(from + i * strides[dim], to, shape, strides, dim + 1);
    }
    return to;
}

}  // namespace

int64_t row_stride(const mx::array& x) {
    const int last = static_cast<int>(x.ndim()) - 1;
    if (x.shape(last) > 1 && x.strides(last) != 1) {
        return -1;
    }
    int64_t stride = -1, next = -1;  // row stride, and required stride of the next outer dimension
    for (int dim = last - 1; dim >= 0; dim--) {
        if (x.shape(dim) == 1) {
            continue;
        }
        if (x.strides(dim) < 0 || (stride >= 0 && x.strides(dim) != next)) {
            return -1;
        }
        stride = stride < 0 ? x.strides(dim) : stride;
        next = x.strides(dim) * x.shape(dim);
    }
    return stride < 0 ? x.shape(last) : stride;  // a single row: any stride is valid
}

mx::array row_contiguous(const mx::array& x, mx::Stream stream) {
    return x.flags().row_contiguous || x.size() == 0 ? x : copy_of(x, stream);
}

mx::array copy_of(const mx::array& x, mx::Stream stream) {
    mx::array packed(x.shape(), x.dtype(), nullptr, {});
    allocate(packed);
    add_temporary(stream, packed);
    if (x.flags().row_contiguous) {
        add_task(stream, [from = x.data<char>(), to = packed.data<char>(), bytes = x.nbytes()] {
            std::memcpy(to, from, bytes);
        });
        return packed;
    }
    add_task(stream, [from = x.data<char>(), to = packed.data<char>(), shape = x.shape(),
                      strides = x.strides(), bytes = x.itemsize()] {
        const auto copy_as = [&](auto element) {
            using Element = decltype(element);
            copy(reinterpret_cast<const Element*>(from), reinterpret_cast<Element*>(to), shape,
                 strides, 0);
        };
        bytes == 1   ? copy_as(uint8_t{})
        : bytes == 2 ? copy_as(uint16_t{})
        : bytes == 4 ? copy_as(uint32_t{})
                     : copy_as(uint64_t{});
    });
    return packed;
}

Rows rows_of(const mx::array& x, mx::Stream stream) {
    if (x.size() == 0) {
        return {nullptr, 0};
    }
    if (const int64_t stride = row_stride(x); stride >= 0) {
        return {x.data<char>(), stride};
    }
    return {row_contiguous(x, stream).data<char>(), x.shape(-1)};
}

const std::vector<mx::array>& update_first(const std::vector<mx::array>& inputs,
                                           std::vector<mx::array>& outputs, mx::Stream stream) {
    const bool is_captured = TaskCapture::current() != nullptr;
    const auto& retained = is_captured ? inputs : outputs[0].inputs();
    for (size_t i = 1; i < outputs.size() && !is_captured; i++) {
        outputs[i].inputs().clear();
    }
    const bool in_place = can_overwrite(retained[0]);
    outputs[0].copy_shared_buffer(in_place ? retained[0] : copy_of(retained[0], stream));
    for (size_t i = in_place ? 1 : 0; i < retained.size(); i++) {
        add_temporary(stream, retained[i]);
    }
    return retained;
}

void* allocate(mx::array& out) {
    if (TaskCapture* capture = TaskCapture::current()) {
        capture->allocate(out);
    } else {
        out.set_data(mx::allocator::malloc(out.nbytes()));
    }
    return out.data<char>();
}

void* allocate_by_token(mx::array& out) {
    const int64_t H = out.shape(1), L = out.shape(2), D = out.shape(3);
    auto flags = out.flags();
    flags.contiguous = true;
    flags.row_contiguous = H == 1 || L == 1;
    flags.col_contiguous = false;
    allocate(out);
    out.copy_shared_buffer(out, {L * H * D, D, H * D, 1}, flags, out.size());
    return out.data<char>();
}

void* allocate_or_reuse(mx::array& out, const mx::array& x) {
    if (x.flags().row_contiguous && x.is_donatable() && x.nbytes() == out.nbytes() &&
        x.data_size() == x.size()) {
        out.copy_shared_buffer(x);
        return out.data<char>();
    }
    return allocate(out);
}

}  // namespace tiny_llm_ext
