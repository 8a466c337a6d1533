#include "src/matmul/matmul_launch.h"

#include "src/matmul/matmul_params.h"

namespace tiny_llm_ext {

namespace {

// Vector loads require rows that begin at multiples of 16 bytes and are multiples of 16 bytes long.
// Other rows are loaded element by element.
bool is_unaligned(const MatmulShape& shape) {
    const int unit = shape.format == Format::float32 ? 4 : 8;  // elements per 16 bytes
    return !shape.aligned || shape.I % unit != 0 || shape.a_stride % unit != 0 ||
           shape.b_stride % unit != 0;
}

}  // namespace

MetalLaunch matmul_launch(const MatmulShape& shape, MatmulVariant variant, int max_threads) {
    MatmulGrid grid = matmul_grid(variant, shape.M, shape.O, shape.I, max_threads);
    if (variant == MatmulVariant::tile64) {
        grid.threads.x = 128;  // 32×32 outputs per simdgroup: without scales, they fit in registers
    }
    if (shape.format == Format::float32 && grid.parts > 1) {
        grid.variant = "tile32";  // its outputs are float32, like partial sums
    }
    if (is_unaligned(shape) && variant != MatmulVariant::readable) {
        grid.variant += "_unaligned";
    }
    const MatmulParams params = {.M = static_cast<int>(shape.M),
                                 .O = static_cast<int>(shape.O),
                                 .I = static_cast<int>(shape.I),
                                 .a_stride = static_cast<int>(shape.a_stride),
                                 .b_stride = static_cast<int>(shape.b_stride)};
    return {.kernel = kernel_name("matmul_" + grid.variant, shape.format),
            .groups = grid.groups,
            .threads = grid.threads,
            .params = bytes_of(params)};
}

}  // namespace tiny_llm_ext
