// matmul on the CPU: kernel selection and tiling of the output.
#include <algorithm>

#include "common/checks.h"
#include "common/instruction_set.h"
#include "common/rows.h"
#include "common/tasks.h"
#include "src/matmul/matmul.h"
#include "src/matmul/matmul_kernels.h"

namespace tiny_llm_ext {

TINY_LLM_DECLARE_SIMD(void matmul(const MatmulJob& job, const MatmulTile& tile);)

namespace {

// Rows of a, and of b, per tile. Both must fit together in the L2 cache: 64 rows of 3,072 16-bit
// elements are 384 KiB for each.
constexpr int64_t TILE = 64;

int64_t tiles_of(int64_t size) { return (size + TILE - 1) / TILE; }

}  // namespace

void Matmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
    const Rows a = rows_of(inputs[0], stream());
    const Rows b = rows_of(inputs[1], stream());
    void* const memory = allocate(out);
    if (out.size() == 0) {
        return;
    }
    const int64_t O = inputs[1].shape(0);
    const MatmulJob job = {
        .M = static_cast<int64_t>(out.size()) / O,
        .O = O,
        .I = inputs[1].shape(1),
        .format = format_of(out.dtype()),
        .a = a.data,
        .b = b.data,
        .out = memory,
        .a_stride = a.stride,
        .b_stride = b.stride,
    };
    const auto kernel = TINY_LLM_CHOOSE_SIMD(instruction_set(), matmul, matmul_reference);
    add_task(stream(), [job, kernel] {
        // Consecutive chunks have the same outputs and different rows, so that b is read from
        // memory only once.
        const int64_t row_tiles = tiles_of(job.M);
        parallel_for(tiles_of(job.O) * row_tiles, [&](int64_t chunk) {
            const int64_t row = chunk % row_tiles * TILE, output = chunk / row_tiles * TILE;
            kernel(job, {row, std::min(job.M, row + TILE), output, std::min(job.O, output + TILE)});
        });
    });
}

}  // namespace tiny_llm_ext
