#include "src/interleave/interleave.h"

#include <algorithm>

#include "common/checks.h"
#include "common/interleaved.h"
#include "common/rows.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tiny_llm_ext {

namespace {

constexpr int64_t LARGE_PAGE = int64_t{1} << 21;
constexpr int64_t LINE = 64;

// Smaller matrices are moved by one thread: another one reads the next layer from its file
// meanwhile, which takes longer.
constexpr int64_t SHARED_BYTES = int64_t{1} << 24;

// An array that is computed already: there is memory for it, and nothing else to do.
mx::array finished(mx::Shape shape, mx::Dtype dtype) {
    mx::array out(std::move(shape), dtype, nullptr, {});
    out.set_status(mx::array::Status::available);
    return out;
}

// Whole large pages of a piece of memory.
void ask_for_large_pages(char* memory, int64_t bytes) {
#if defined(__linux__)
    const auto address = reinterpret_cast<intptr_t>(memory);
    const intptr_t first = (address + LARGE_PAGE - 1) / LARGE_PAGE * LARGE_PAGE;
    const intptr_t last = (address + bytes) / LARGE_PAGE * LARGE_PAGE;
    if (first < last) {  // it is a wish: where it is not granted, nothing is lost
        madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
    }
#endif
}

// A cache line of every row that goes together, after the other: no line is read twice.
template <typename T>
void interleave_rows(const T* matrix, T* out, int64_t O, int64_t W, int64_t rows) {
    constexpr int64_t LINE_WORDS = LINE / sizeof(T);
    const auto move = [=](int64_t block) {
        const T* from = matrix + block * rows * W;
        T* to = out + block * rows * W;
        for (int64_t line = 0; line < W; line += LINE_WORDS) {
            const int64_t end = std::min(W, line + LINE_WORDS);
            for (int64_t r = 0; r < rows; r++) {
                for (int64_t w = line; w < end; w++) {
                    to[w * rows + r] = from[r * W + w];
                }
            }
        }
    };
    if (O * W * static_cast<int64_t>(sizeof(T)) >= SHARED_BYTES) {
        parallel_for(O / rows, move);
        return;
    }
    for (int64_t block = 0; block < O / rows; block++) {
        move(block);
    }
}

constexpr const char* INTERLEAVE = "interleave";

void check_arguments(const mx::array& matrix, int rows, const mx::array& memory, int64_t offset) {
    check(rows >= 1, INTERLEAVE, "expected a positive number of rows, got ", rows);
    check(matrix.ndim() == 2 && matrix.shape(0) % rows == 0 &&
              (matrix.itemsize() == 2 || matrix.itemsize() == 4),
          INTERLEAVE, "expected a matrix O×W of 2 or 4 bytes a number, O a multiple of ", rows,
          ", got ", matrix.shape(), " in ", matrix.dtype());
    check(memory.status() == mx::array::Status::available && memory.flags().row_contiguous,
          INTERLEAVE,
          "expected memory of large_pages(), got an array that is not computed yet, or a view");
    const auto room = static_cast<int64_t>(memory.nbytes()) - offset;
    check(offset >= 0 && offset % LINE == 0 && static_cast<int64_t>(matrix.nbytes()) <= room,
          INTERLEAVE, "expected memory with room for the matrix from a multiple of ", LINE,
          " bytes on, got ", matrix.nbytes(), " bytes at ", offset, " of ", memory.nbytes());
}

}  // namespace

mx::array large_pages(int64_t bytes) {
    check(bytes >= 0, "large_pages", "expected bytes of 0 or more, got ", bytes);
    // Two dimensions: one counts no further than 2³¹.
    constexpr int64_t PAGE = 4096;
    mx::array memory =
        finished({static_cast<int>((bytes + PAGE - 1) / PAGE), PAGE / 8}, mx::uint64);
    ask_for_large_pages(static_cast<char*>(allocate(memory)),
                        static_cast<int64_t>(memory.nbytes()));
    return memory;
}

mx::array interleave(const mx::array& matrix, int rows, const mx::array& memory, int64_t offset) {
    check_arguments(matrix, rows, memory, offset);
    const int O = matrix.shape(0), W = matrix.shape(1);
    mx::array in = matrix;
    in.eval();
    if (!in.flags().row_contiguous) {
        in = mx::contiguous(matrix, false, mx::Device::cpu);
        in.eval();
    }
    mx::array out = finished({O / rows, W, rows}, matrix.dtype());
    const mx::array::Flags flags{
        .contiguous = true, .row_contiguous = true, .col_contiguous = false};
    out.copy_shared_buffer(memory, out.strides(), flags, out.size(),
                           offset / static_cast<int64_t>(out.itemsize()));
    if (out.itemsize() == 4) {
        interleave_rows(in.data<uint32_t>(), out.data<uint32_t>(), O, W, rows);
    } else {
        interleave_rows(in.data<uint16_t>(), out.data<uint16_t>(), O, W, rows);
    }
    return out;
}

}  // namespace tiny_llm_ext
