// Shared implementation of row-wise operations: norms, gates, biases, sums, the router.
//
// An operation consists of its contract (<op>.h), argument checks and a RowOperation (<op>.cpp), a
// reference and a vector kernel (common/row_job.h), and optionally a Metal kernel with RowParams
// (common/metal_row_params.h). The shared part builds the graph node, views the inputs as rows,
// allocates the outputs, and divides the rows among threads or launches the Metal kernel.
#pragma once

#include <vector>

#include "common/capturable.h"
#include "common/instruction_set.h"
#include "common/row_job.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace tiny_llm_ext {

namespace mx = mlx::core;

/// Assignment of elements to the threads of a Metal kernel.
enum class RowGrid {
    elements,             // a thread per ROW_READS adjacent elements, rows along y
    threadgroup_per_row,  // ROW_READS adjacent elements per thread and pass
    simdgroup_per_row,
};

/// Divides the rows of a job among threads.
void run_rows(const RowJob& job, RowKernel kernel);

/// Shape of the first input.
mx::Shape first_shape(const std::vector<mx::array>& inputs, const RowOptions& options);

/// Static description of an operation.
struct RowOperation {
    const char* name;       // the operation's folder in src/
    const char* node;       // name of the graph node
    RowKernel (*kernel)();  // selects the CPU kernel, when the node is evaluated
    int outputs = 1;
    int first_donated = 0;  // output i may reuse the buffer of input first_donated + i; −1: none
    bool has_scalar_rows = false;  // whether an output row is one element, without a dimension
    int cost = 1;                  // per element of the first input; 1: that of a load
    const char* metal_kernel = nullptr;  // name without dtypes; null if the GPU has none
    RowGrid grid = RowGrid::elements;
    mx::Shape (*shape)(const std::vector<mx::array>&, const RowOptions&) = first_shape;
    void (*run)(const RowJob&, RowKernel) = run_rows;
};

/// Initializes RowOperation::kernel: selects the kernel for the instruction set.
#define TINY_LLM_ROW_KERNEL(op) \
    []() -> RowKernel { return TINY_LLM_CHOOSE_SIMD(instruction_set(), op, op##_reference); }

/// Builds the node of an operation with checked arguments, and returns its outputs.
///
/// operation: referenced by the node, so it must have static storage duration.
/// inputs: one to three, with at least one dimension each.
/// dtypes: of the outputs.
std::vector<mx::array> row_operation(const RowOperation& operation, std::vector<mx::array> inputs,
                                     std::vector<mx::Dtype> dtypes, mx::StreamOrDevice s,
                                     RowOptions options = {});

/// Graph node of a row operation.
class RowNode : public mx::Primitive, public Capturable {
   public:
    RowNode(mx::Stream stream, const RowOperation& operation, RowOptions options)
        : mx::Primitive(stream), operation_(operation), options_(options) {}

    void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;
    void eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) override;

    const char* name() const override { return operation_.node; }
    bool is_equivalent(const mx::Primitive& other) const override;
    std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

   private:
    void allocate_outputs(const std::vector<mx::array>& inputs,
                          std::vector<mx::array>& outputs) const;

    const RowOperation& operation_;
    RowOptions options_;
};

}  // namespace tiny_llm_ext
