#include "src/prepack/prepack.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "common/checks.h"
#include "common/file.h"
#include "common/prepacked.h"
#include "common/rows.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tiny_llm_ext {

namespace {

constexpr int64_t HUGE_PAGE = int64_t{1} << 21;

// Minimum bytes for a copy by all threads. Smaller copies take less time than waking the threads.
constexpr int64_t SHARED_BYTES = int64_t{1} << 18;

// Creates an array that is marked as evaluated but has no memory yet.
mx::array evaluated_array(mx::Shape shape, mx::Dtype dtype) {
    mx::array out(std::move(shape), dtype, nullptr, {});
    out.set_status(mx::array::Status::available);
    return out;
}

// Requests huge pages for the part of a memory range that consists of complete huge pages.
void request_huge_pages(char* memory, int64_t bytes) {
#if defined(__linux__)
    const auto address = reinterpret_cast<intptr_t>(memory);
    const intptr_t first = (address + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    const intptr_t last = (address + bytes) / HUGE_PAGE * HUGE_PAGE;
    if (first < last) {  // only a hint, so failure is harmless
        madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
    }
#endif
}

// Runs body(block) for each block. Uses all threads if `bytes`, the amount to copy, is at least
// SHARED_BYTES; otherwise only the calling thread.
template <typename Body>
void for_blocks(int64_t blocks, int64_t bytes, const Body& body) {
    if (bytes >= SHARED_BYTES) {
        parallel_for(blocks, body);
        return;
    }
    for (int64_t block = 0; block < blocks; block++) {
        body(block);
    }
}

template <typename T>
void prepack_blocks(const T* matrix, T* out, int64_t O, int64_t W, int64_t rows) {
    for_blocks(O / rows, O * W * static_cast<int64_t>(sizeof(T)), [=](int64_t block) {
        interleave(matrix + block * rows * W, W, rows, out + block * rows * W, rows);
    });
}

template <typename T>
void prepack_blocks(const File& file, int64_t begin, T* out, int64_t O, int64_t W, int64_t rows) {
    const int64_t block_bytes = rows * W * static_cast<int64_t>(sizeof(T));
    const int64_t blocks = O / rows;
    const int64_t batch =
        std::max<int64_t>(1, File::READ_BYTES / std::max<int64_t>(1, block_bytes));
    std::atomic<int> error = 0;
    for_blocks((blocks + batch - 1) / batch, blocks * block_bytes, [&](int64_t chunk) {
        const int64_t first = chunk * batch, last = std::min(blocks, first + batch);
        std::vector<T> read((last - first) * rows * W);
        const int failed =
            file.read(read.data(), (last - first) * block_bytes, begin + first * block_bytes);
        if (failed != 0) {
            error = failed;
            return;
        }
        for (int64_t block = first; block < last; block++) {
            interleave(read.data() + (block - first) * rows * W, W, rows, out + block * rows * W,
                       rows);
        }
    });
    if (error != 0) {
        file.fail(error);
    }
}

constexpr const char* PREPACK = "prepack_weight";

// Array for a prepacked matrix, in `memory` from byte `offset` on.
mx::array slice_of(const mx::array& memory, int64_t offset, mx::Shape shape, mx::Dtype dtype) {
    mx::array out = evaluated_array(std::move(shape), dtype);
    const mx::array::Flags flags{
        .contiguous = true, .row_contiguous = true, .col_contiguous = false};
    out.copy_shared_buffer(memory, out.strides(), flags, out.size(),
                           offset / static_cast<int64_t>(out.itemsize()));
    return out;
}

void check_arguments(const mx::array& matrix, int rows, const mx::array& memory, int64_t offset) {
    check(rows >= 1, PREPACK, "expected a positive number of rows, got ", rows);
    check(matrix.ndim() == 2 && matrix.shape(0) % rows == 0 &&
              (matrix.itemsize() == 2 || matrix.itemsize() == 4),
          PREPACK, "expected a matrix O×W of elements of 2 or 4 bytes, O a multiple of ", rows,
          ", got ", matrix.shape(), " in ", matrix.dtype());
    check(memory.status() == mx::array::Status::available && memory.flags().row_contiguous, PREPACK,
          "expected memory from huge_pages(), got an unevaluated array or a view");
    const auto space = static_cast<int64_t>(memory.nbytes()) - offset;
    check(offset >= 0 && offset % CACHE_LINE == 0 && static_cast<int64_t>(matrix.nbytes()) <= space,
          PREPACK, "expected memory with space for the matrix at a multiple of ", CACHE_LINE,
          " bytes, got ", matrix.nbytes(), " bytes at ", offset, " of ", memory.nbytes());
}

}  // namespace

mx::array huge_pages(int64_t bytes) {
    check(bytes >= 0, "huge_pages", "expected bytes to be at least 0, got ", bytes);
    // The array has two dimensions, because MLX limits each dimension to 2³¹ − 1 elements.
    constexpr int64_t PAGE = 4096;
    mx::array memory =
        evaluated_array({static_cast<int>((bytes + PAGE - 1) / PAGE), PAGE / 8}, mx::uint64);
    request_huge_pages(static_cast<char*>(allocate(memory)), static_cast<int64_t>(memory.nbytes()));
    return memory;
}

mx::array prepack_weight(const mx::array& matrix, int rows, const mx::array& memory,
                         int64_t offset) {
    check_arguments(matrix, rows, memory, offset);
    const int O = matrix.shape(0), W = matrix.shape(1);
    mx::array in = matrix;
    in.eval();
    if (!in.flags().row_contiguous) {
        in = mx::contiguous(matrix, false, mx::Device::cpu);
        in.eval();
    }
    mx::array out = slice_of(memory, offset, {O / rows, W, rows}, matrix.dtype());
    if (out.itemsize() == 4) {
        prepack_blocks(in.data<uint32_t>(), out.data<uint32_t>(), O, W, rows);
    } else {
        prepack_blocks(in.data<uint16_t>(), out.data<uint16_t>(), O, W, rows);
    }
    return out;
}

mx::array prepack_weight_from_file(const mx::array& matrix, const std::string& path, int64_t begin,
                                   int rows, const mx::array& memory, int64_t offset,
                                   bool limit_readahead) {
    check_arguments(matrix, rows, memory, offset);
    check(begin >= 0, "prepack_weight_from_file", "expected begin to be at least 0, got ", begin);
    const int O = matrix.shape(0), W = matrix.shape(1);
    const File file("prepack_weight_from_file", path);
    if (limit_readahead) {
        file.request_readahead(begin, static_cast<int64_t>(matrix.nbytes()));
    }
    mx::array out = slice_of(memory, offset, {O / rows, W, rows}, matrix.dtype());
    if (out.itemsize() == 4) {
        prepack_blocks(file, begin, out.data<uint32_t>(), O, W, rows);
    } else {
        prepack_blocks(file, begin, out.data<uint16_t>(), O, W, rows);
    }
    return out;
}

}  // namespace tiny_llm_ext
