#include "src/matmul/matmul_variants.h"

#include <stdexcept>

#include "common/metal_tile_sizes.h"
#include "src/matmul/matmul_params.h"

namespace tiny_llm_ext {

namespace {

// Fewer threadgroups underutilize the GPU: Apple GPUs have 8 to 80 cores, and each core needs
// several threadgroups.
constexpr int64_t MIN_THREADGROUPS = 128;

constexpr int MATVEC_OUTPUTS = 4;     // outputs per simdgroup; equals OUTPUTS in the kernels
constexpr int MATVEC_SIMDGROUPS = 2;  // simdgroups per threadgroup, which share no data

int64_t tiles(int64_t M, int64_t O, int size) { return ceil_div(M, size) * ceil_div(O, size); }

MatmulGrid tile_grid(int64_t M, int64_t O, int64_t I, int size, bool split_k) {
    const int64_t parts = split_k ? std::max<int64_t>(1, ceil_div(I, TILE_PART)) : 1;
    return {.variant = "tile" + std::to_string(size) + (parts > 1 ? "_split_k" : ""),
            .groups = {.x = ceil_div(M, size), .y = ceil_div(O, size), .z = parts},
            .threads = {.x = size == 64 ? 256 : 64},  // a simdgroup computes 32×16 outputs
            .parts = parts};
}

}  // namespace

MatmulVariant matmul_variant_named(const std::string& name) {
    if (name == "readable") return MatmulVariant::readable;
    if (name == "matvec") return MatmulVariant::matvec;
    if (name == "tile64") return MatmulVariant::tile64;
    if (name == "tile32") return MatmulVariant::tile32;
    if (name == "tile32_split_k") return MatmulVariant::tile32_split_k;
    throw std::invalid_argument(
        "[metal] expected variant readable, matvec, tile64, tile32 or tile32_split_k, got " + name);
}

MatmulVariant choose_matmul_variant(int64_t M, int64_t O, int64_t I) {
    if (M <= MATVEC_ROWS) {
        return MatmulVariant::matvec;
    }
    if (M > 32 && tiles(M, O, 64) >= MIN_THREADGROUPS) {
        return MatmulVariant::tile64;
    }
    const bool split_k = tiles(M, O, 32) < MIN_THREADGROUPS && I > TILE_PART;
    return split_k ? MatmulVariant::tile32_split_k : MatmulVariant::tile32;
}

MatmulGrid matmul_grid(MatmulVariant variant, int64_t M, int64_t O, int64_t I, int max_threads) {
    switch (variant) {
        case MatmulVariant::readable: {
            const int64_t rows = std::min<int64_t>({M, 8, max_threads / SIMD_WIDTH});
            return {.variant = "readable",
                    .groups = {.x = ceil_div(O, SIMD_WIDTH), .y = ceil_div(M, rows)},
                    .threads = {.x = SIMD_WIDTH, .y = rows},
                    .parts = 1};
        }
        case MatmulVariant::matvec: {
            const int rows = M == 1 ? 1 : M == 2 ? 2 : 4;
            const int simdgroups = std::min(MATVEC_SIMDGROUPS, max_threads / SIMD_WIDTH);
            return {
                .variant = "matvec" + std::to_string(rows),
                .groups = {.x = ceil_div(M, rows), .y = ceil_div(O, MATVEC_OUTPUTS * simdgroups)},
                .threads = {.x = simdgroups * SIMD_WIDTH},
                .parts = 1};
        }
        case MatmulVariant::tile64:
            return tile_grid(M, O, I, 64, false);
        default:
            return tile_grid(M, O, I, 32, variant == MatmulVariant::tile32_split_k);
    }
}

MetalLaunch split_k_sum_launch(int64_t parts, int64_t size, Format format, int max_threads) {
    const int threads = threads_for(size, 256, max_threads);
    const SplitKSumParams params = {.parts = static_cast<int>(parts), .size = size};
    return {.kernel = kernel_name("matmul_tile_split_k_sum", format),
            .groups = {.x = ceil_div(size, threads)},
            .threads = {.x = threads},
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
