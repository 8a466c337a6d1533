#include "common/extend_rows.h"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "mlx/allocator.h"
#include "mlx/device.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace tiny_llm_ext {

namespace mx = mlx::core;

#if defined(__linux__) && defined(MREMAP_DONTUNMAP)

namespace {

/// The memory pages that are entirely inside an address range.
struct PageRange {
    char* begin;
    char* end;

    PageRange(char* from, char* to) {
        const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
        begin = from + (page - reinterpret_cast<uintptr_t>(from) % page) % page;
        end = to - reinterpret_cast<uintptr_t>(to) % page;
    }

    size_t bytes() const { return begin < end ? static_cast<size_t>(end - begin) : 0; }
};

/// Zeroes [begin, end). Complete pages are returned to the system, which provides zeroed pages at
/// the next access.
void zero(char* begin, char* end) {
    const PageRange pages(begin, end);
    if (pages.bytes() == 0 || madvise(pages.begin, pages.bytes(), MADV_DONTNEED) != 0) {
        std::memset(begin, 0, end - begin);
        return;
    }
    std::memset(begin, 0, pages.begin - begin);
    std::memset(pages.end, 0, end - pages.end);
}

/// Moves pages to another address range, after which the source reads as zeros. Returns false if
/// the ranges are empty, differ in size, or mremap fails.
bool move_pages(const PageRange& source, const PageRange& target) {
    return source.bytes() > 0 && source.bytes() == target.bytes() &&
           mremap(source.begin, source.bytes(), source.bytes(),
                  MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, target.begin) != MAP_FAILED;
}

/// Allocates an array whose data has the same page alignment as `data`, so that pages can be moved;
/// at the start of a page if `data` is null.
mx::array allocate_aligned(const mx::Shape& shape, mx::Dtype dtype, const char* data) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    size_t bytes = dtype.size();
    for (const int size : shape) bytes *= size;
    mx::allocator::Data buffer = mx::allocator::malloc(bytes + page);
    if (buffer.buffer().ptr() == nullptr) {  // failed, which MLX does not check
        throw std::runtime_error("Cannot allocate " + std::to_string(bytes) + " bytes.");
    }
    mx::array out(std::move(buffer), shape, dtype);
    const size_t offset =
        (reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(out.data<char>())) % page;
    out.copy_shared_buffer(out, out.strides(), out.flags(), out.data_size(),
                           offset / out.itemsize());
    return out;
}

/// Transfers `bytes` bytes to memory of the same page alignment: moves complete pages if `movable`,
/// and copies everything else.
void move(char* from, char* to, size_t bytes, bool movable) {
    const PageRange source(from, from + bytes);
    const PageRange target(to, to + bytes);
    if (movable && move_pages(source, target)) {
        std::memcpy(to, from, source.begin - from);
        std::memcpy(target.end, source.end, from + bytes - source.end);
    } else {
        std::memcpy(to, from, bytes);
    }
}

}  // namespace

bool extend_rows(mx::array& x, int num_rows) {
    const bool is_dense = x.is_available() && x.flags().row_contiguous;
    if (mx::is_available(mx::Device::gpu) || !is_dense || x.ndim() == 0 || num_rows < 0) {
        return false;
    }
    mx::Shape shape = x.shape();
    shape[0] += num_rows;
    char* const from = x.size() == 0 ? nullptr : x.data<char>();
    mx::array extended = allocate_aligned(shape, x.dtype(), from);
    char* to = extended.data<char>();
    if (from == nullptr) {
        std::memset(to, 0, extended.nbytes());  // a caller may reserve all memory in this way
    } else {
        move(from, to, x.nbytes(), x.is_donatable());
        zero(to + x.nbytes(), to + extended.nbytes());
    }
    x.overwrite_descriptor(extended);
    return true;
}

#else

bool extend_rows(mx::array&, int) { return false; }

#endif

}  // namespace tiny_llm_ext
