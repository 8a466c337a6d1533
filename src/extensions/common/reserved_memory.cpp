#include "common/reserved_memory.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "common/checks.h"
#include "mlx/allocator.h"
#include "mlx/device.h"
#include "mlx/memory.h"

#if defined(__linux__)
#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#endif

namespace tiny_llm_ext {

namespace mx = mlx::core;

namespace {

size_t row_bytes(const mx::array& x) { return x.shape(0) == 0 ? 0 : x.nbytes() / x.shape(0); }

void check_rows(const mx::array& x, const char* name, int first, int last) {
    check(x.is_available() && x.ndim() > 0 && 0 <= first && first <= last && last <= x.shape(0),
          name, "expected rows of an evaluated array, got ", first, " to ", last);
}

char* row(const mx::array& x, int index) {
    return const_cast<char*>(x.data<char>()) + index * row_bytes(x);
}

/// The complete memory pages inside an address range.
struct PageRange {
    uintptr_t begin, end;

    PageRange(const void* first, const void* last) {
        begin = (reinterpret_cast<uintptr_t>(first) + page_bytes() - 1) / page_bytes();
        end = reinterpret_cast<uintptr_t>(last) / page_bytes();
        begin *= page_bytes();
        end = std::max(begin, end * page_bytes());
    }

    static uintptr_t page_bytes() { return static_cast<uintptr_t>(sysconf(_SC_PAGESIZE)); }

    /// Returns the pages to the system, which provides zeroed pages at the next access.
    bool release() const {
#if defined(__linux__)
        if (mx::is_available(mx::Device::gpu)) return false;
        return madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) == 0;
#else
        return false;
#endif
    }
};

// Allocates an array that starts `begin` bytes after the start of a memory page.
mx::array allocate_at_page(const mx::Shape& shape, mx::Dtype dtype, uintptr_t begin) {
    size_t bytes = dtype.size();
    for (const int size : shape) bytes *= size;
    const uintptr_t page = PageRange::page_bytes();
    mx::allocator::Data buffer = mx::allocator::malloc(bytes + begin + 2 * page);
    if (buffer.buffer().ptr() == nullptr) {  // failed, which MLX does not check
        throw std::runtime_error("Cannot allocate " + std::to_string(bytes) + " bytes.");
    }
    // Above its memory limit, MLX waits for each task of a graph before it adds the next one. Its
    // count of active memory includes these bytes, of which few may be resident.
    if (!mx::is_available(mx::Device::gpu)) mx::set_memory_limit(mx::get_memory_limit() + bytes);
    mx::array out(std::move(buffer), shape, dtype);
    const uintptr_t offset = page - reinterpret_cast<uintptr_t>(out.data<char>()) % page + begin;
    out.copy_shared_buffer(out, out.strides(), out.flags(), out.data_size(),
                           static_cast<int64_t>(offset / dtype.size()));
    return out;
}

}  // namespace

std::optional<mx::array> map_file([[maybe_unused]] const mx::Shape& shape,
                                  [[maybe_unused]] mx::Dtype dtype,
                                  [[maybe_unused]] const std::string& file,
                                  [[maybe_unused]] int64_t begin) {
#if defined(__linux__)
    if (mx::is_available(mx::Device::gpu)) return std::nullopt;
    check(begin >= 0 && begin % dtype.size() == 0, "map_file",
          "expected begin to be a multiple of ", dtype.size(), ", got ", begin);
    const int64_t in_page = begin % static_cast<int64_t>(PageRange::page_bytes());
    const mx::array out = allocate_at_page(shape, dtype, in_page);
    const int descriptor = open(file.c_str(), O_RDONLY | O_CLOEXEC);
    // Replaces the allocation's pages by private copies of the file's, which MLX may overwrite and
    // unmap like the pages before.
    void* const mapped =
        descriptor < 0 ? MAP_FAILED
                       : mmap(row(out, 0) - in_page, out.nbytes() + in_page, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_FIXED, descriptor, begin - in_page);
    const int error = errno;
    if (descriptor >= 0) close(descriptor);
    if (mapped == MAP_FAILED) {
        throw std::runtime_error("map_file: " + file + " cannot be mapped: " + strerror(error));
    }
    return out;
#else
    return std::nullopt;
#endif
}

mx::array reserve_zeros(const mx::Shape& shape, mx::Dtype dtype) {
    mx::clear_cache();  // on a GPU, cached buffers are not zeroed
    mx::array out = allocate_at_page(shape, dtype, 0);
    const size_t bytes = out.nbytes(), page = PageRange::page_bytes();
    char* const data = out.data<char>();
    const PageRange pages(data, data + bytes);
    if (pages.release()) {
        std::memset(reinterpret_cast<void*>(pages.end), 0, bytes % page);
    } else if (!mx::is_available(mx::Device::gpu) || bytes < (1 << 20)) {
        std::memset(data, 0, bytes);  // large GPU buffers are new, and zero
    }
    return out;
}

void release_rows(const mx::array& x, int first, int last) {
    check_rows(x, "release_rows", first, last);
    PageRange(row(x, first), row(x, last)).release();
}

void populate_rows(const mx::array& x, int last) {
    check_rows(x, "populate_rows", 0, last);
    volatile char* const memory = row(x, 0);
    for (size_t i = 0; i < last * row_bytes(x); i += PageRange::page_bytes()) memory[i] = memory[i];
}

}  // namespace tiny_llm_ext
