// Python bindings of the operations. docstrings.py generates their docstrings, in the namespace
// `docs`, from comments in the operations' headers.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings_metal.h"
#include "common/instruction_set.h"
#include "common/malloc_policy.h"
#include "common/reserved_memory.h"
#include "common/schedule.h"
#include "common/tasks.h"
#include "common/threads.h"
#include "docstrings.h"
#include "src/add_bias/add_bias.h"
#include "src/add_lora/add_lora.h"
#include "src/argmax/argmax.h"
#include "src/axpby/axpby.h"
#include "src/cache_write/cache_write.h"
#include "src/causal_conv1d/causal_conv1d.h"
#include "src/flash_attention/flash_attention.h"
#include "src/gated_delta_rule/gated_delta_rule.h"
#include "src/gated_rms_norm/gated_rms_norm.h"
#include "src/gguf_blocks/gguf_blocks.h"
#include "src/graph_capture/graph_cache.h"
#include "src/grouped_quantized_matmul/grouped_quantized_matmul.h"
#include "src/matmul/matmul.h"
#include "src/paged_attention/paged_attention.h"
#include "src/paged_cache_write/paged_cache_write.h"
#include "src/prepack/prepack.h"
#include "src/qk_norm_rope/qk_norm_rope.h"
#include "src/quantized_embedding/quantized_embedding.h"
#include "src/quantized_matmul/multi_quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/rms_norm/rms_norm.h"
#include "src/scaled_sum/scaled_sum.h"
#include "src/sigmoid_gate/sigmoid_gate.h"
#include "src/swiglu/swiglu.h"
#include "src/topk_softmax/topk_softmax.h"
#include "src/weighted_sum/weighted_sum.h"

namespace mx = mlx::core;
namespace nb = nanobind;
namespace docs = tiny_llm_ext::docs;
using namespace nb::literals;

NB_MODULE(_ext, m) {
    tiny_llm_ext::configure_malloc();

    m.def("axpby", &tiny_llm_ext::axpby, "x"_a, "y"_a, "alpha"_a, "beta"_a, nb::kw_only(),
          "stream"_a = nb::none(), docs::axpby);

    m.def("argmax", &tiny_llm_ext::argmax, "x"_a, nb::kw_only(), "stream"_a = nb::none(),
          docs::argmax);

    m.def("quantized_matmul", &tiny_llm_ext::quantized_matmul, "scales"_a, "biases"_a.none(),
          "group_size"_a, "bits"_a, "a"_a, "b"_a, "transpose_b"_a = true, nb::kw_only(),
          "activation_bits"_a = 16, "stream"_a = nb::none(), docs::quantized_matmul);

    m.def("multi_quantized_matmul", &tiny_llm_ext::multi_quantized_matmul, "scales"_a, "biases"_a,
          "group_size"_a, "bits"_a, "a"_a, "b"_a, nb::kw_only(), "activation_bits"_a = 16,
          "stream"_a = nb::none(), docs::multi_quantized_matmul);

    m.def("grouped_quantized_matmul", &tiny_llm_ext::grouped_quantized_matmul, "scales"_a,
          "biases"_a.none(), "group_size"_a, "bits"_a, "a"_a, "b"_a, "experts"_a, nb::kw_only(),
          "activation_bits"_a = 16, "stream"_a = nb::none(), docs::grouped_quantized_matmul);

    m.def("rms_norm", &tiny_llm_ext::rms_norm, "x"_a, "weight"_a, "eps"_a, nb::kw_only(),
          "stream"_a = nb::none(), docs::rms_norm);

    m.def("add_rms_norm", &tiny_llm_ext::add_rms_norm, "x"_a, "y"_a, "weight"_a, "eps"_a,
          nb::kw_only(), "stream"_a = nb::none(), docs::add_rms_norm);

    m.def("swiglu", &tiny_llm_ext::swiglu, "gate"_a, "up"_a, "activation"_a = "silu", nb::kw_only(),
          "stream"_a = nb::none(), docs::swiglu);

    m.def("add_lora", &tiny_llm_ext::add_lora, "y"_a, "x"_a, "lora_a"_a, "lora_b"_a,
          "rank_offsets"_a, "adapter_ids"_a, nb::kw_only(), "stream"_a = nb::none(),
          docs::add_lora);

    m.def("topk_softmax", &tiny_llm_ext::topk_softmax, "logits"_a, "k"_a, "normalize"_a,
          "expert_scales"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
          docs::topk_softmax);

    m.def("weighted_sum", &tiny_llm_ext::weighted_sum, "x"_a, "weights"_a, "base"_a = nb::none(),
          nb::kw_only(), "stream"_a = nb::none(), docs::weighted_sum);

    m.def("scaled_sum", &tiny_llm_ext::scaled_sum, "x"_a, "y"_a, "scale"_a, nb::kw_only(),
          "stream"_a = nb::none(), docs::scaled_sum);

    m.def("add_bias", &tiny_llm_ext::add_bias, "x"_a, "bias"_a, "experts"_a = nb::none(),
          nb::kw_only(), "stream"_a = nb::none(), docs::add_bias);

    m.def("qk_norm_rope", &tiny_llm_ext::qk_norm_rope, "x"_a, "weight"_a.none(), "eps"_a, "cos"_a,
          "sin"_a, nb::kw_only(), "stream"_a = nb::none(), docs::qk_norm_rope);

    m.def("causal_conv1d", &tiny_llm_ext::causal_conv1d, "x"_a, "weight"_a, "conv_states"_a,
          "cu_seqlens"_a, "read_slots"_a, "write_slots"_a, "overwrite"_a = false, nb::kw_only(),
          "stream"_a = nb::none(), docs::causal_conv1d);

    m.def("gated_delta_rule", &tiny_llm_ext::gated_delta_rule, "qkv"_a, "a"_a, "b"_a, "A_log"_a,
          "dt_bias"_a, "states"_a, "cu_seqlens"_a, "read_slots"_a, "write_slots"_a, "num_k_heads"_a,
          "overwrite"_a = false, nb::kw_only(), "stream"_a = nb::none(), docs::gated_delta_rule);

    m.def("gated_rms_norm", &tiny_llm_ext::gated_rms_norm, "o"_a, "z"_a, "weight"_a, "eps"_a,
          nb::kw_only(), "stream"_a = nb::none(), docs::gated_rms_norm);

    m.def("sigmoid_gate", &tiny_llm_ext::sigmoid_gate, "x"_a, "gate"_a, nb::kw_only(),
          "stream"_a = nb::none(), docs::sigmoid_gate);

    m.def("flash_attention", &tiny_llm_ext::flash_attention, "query"_a, "key"_a, "value"_a,
          "scale"_a = nb::none(), "causal"_a = false, "mask"_a = nb::none(),
          "context_lens"_a = nb::none(), "sinks"_a = nb::none(), nb::kw_only(),
          "stream"_a = nb::none(), docs::flash_attention);

    m.def("cache_write",
          nb::overload_cast<const mx::array&, const mx::array&, const mx::array&, bool,
                            mx::StreamOrDevice>(&tiny_llm_ext::cache_write),
          "buffer"_a, "tokens"_a, "offsets"_a, "overwrite"_a = false, nb::kw_only(),
          "stream"_a = nb::none());
    m.def("cache_write",
          nb::overload_cast<const mx::array&, const mx::array&, const std::vector<int>&, bool,
                            mx::StreamOrDevice>(&tiny_llm_ext::cache_write),
          "buffer"_a, "tokens"_a, "offsets"_a, "overwrite"_a = false, nb::kw_only(),
          "stream"_a = nb::none(), docs::cache_write);

    m.def("paged_attention", &tiny_llm_ext::paged_attention, "query"_a, "key_pages"_a,
          "value_pages"_a, "block_table"_a, "context_lens"_a, "scale"_a = nb::none(),
          "causal"_a = true, "window"_a = 0, "sinks"_a = nb::none(), nb::kw_only(),
          "stream"_a = nb::none(), docs::paged_attention);

    m.def("paged_attention_varlen", &tiny_llm_ext::paged_attention_varlen, "query"_a, "key_pages"_a,
          "value_pages"_a, "cu_seqlens_q"_a, "context_lens"_a, "block_table"_a,
          "scale"_a = nb::none(), "window"_a = 0, "sinks"_a = nb::none(), nb::kw_only(),
          "stream"_a = nb::none(), docs::paged_attention_varlen);

    m.def("paged_cache_write", &tiny_llm_ext::paged_cache_write, "pages"_a, "tokens"_a, "slots"_a,
          "overwrite"_a = false, nb::kw_only(), "stream"_a = nb::none(), docs::paged_cache_write);

    m.def("quantized_embedding", &tiny_llm_ext::quantized_embedding, "ids"_a, "scales"_a,
          "biases"_a.none(), "group_size"_a, "bits"_a, "weight"_a, nb::kw_only(),
          "stream"_a = nb::none(), docs::quantized_embedding);

    m.def("matmul", &tiny_llm_ext::matmul, "a"_a, "b"_a, nb::kw_only(), "stream"_a = nb::none(),
          docs::matmul);

    using tiny_llm_ext::GraphCache;
    nb::class_<GraphCache>(
        m, "GraphCache",
        R"(Cache of a function's captured graphs, each replayed as a single CPU node.

    graph_cache = GraphCache()
    outputs = graph_cache.replay(inputs)
    if outputs is None:  # no graph for these shapes and dtypes
        placeholders = graph_cache.placeholders(inputs)
        graph_cache.capture(placeholders, function(*placeholders))
)")
        .def(nb::init<>())
        .def("replay", &GraphCache::replay, "inputs"_a,
             R"(Replays the graph for `inputs` as one node.

Args:
    inputs: arrays. Those that the function writes to are overwritten if nothing else references
        them when the node is evaluated, and copied otherwise.

Returns:
    The outputs; None if no graph was captured for these shapes and dtypes on this thread's stream.
)")
        .def_static("placeholders", &GraphCache::placeholders, "inputs"_a,
                    "Arrays without data, with the shapes and dtypes of `inputs`.")
        .def("capture", &GraphCache::capture, "placeholders"_a, "outputs"_a,
             R"(Captures the operations between placeholders and outputs.

Args:
    placeholders: from `placeholders`.
    outputs: the function's outputs for them. Other arrays that the function read become constants.

Raises:
    ValueError: an operation cannot be captured (src/extensions/src/graph_capture/graph.h), is on a
        GPU or on another stream than the others, or writes to an array that is read afterwards; or
        no output is computed by an operation.
)")
        .def("steps", &GraphCache::steps,
             R"(Steps of the graph last captured or replayed.

Returns:
    Per step: the operation; its inputs, None for a constant; its outputs; and the arrays that no
    later step reads. Arrays are numbered: the graph's inputs first, then the steps' outputs.
)");

    m.def(
        "instruction_set", [] { return tiny_llm_ext::name_of(tiny_llm_ext::instruction_set()); },
        "Instruction set of the CPU kernels: TINY_LLM_CPU_ISA, or the machine's best.");
    m.def(
        "instruction_sets",
        [] {
            std::vector<std::string> names;
            for (tiny_llm_ext::InstructionSet set : tiny_llm_ext::instruction_sets()) {
                names.push_back(tiny_llm_ext::name_of(set));
            }
            return names;
        },
        "Values of TINY_LLM_CPU_ISA supported by this machine, slowest first.");
    m.def("prepack_rows", &tiny_llm_ext::prepack_rows,
          "Rows per pack of the CPU kernels' prepacked weights; 0 if they read only row-major "
          "weights.");
    m.def(
        "reserve_zeros",
        [](const std::vector<int>& shape, mx::Dtype dtype) {
            return tiny_llm_ext::reserve_zeros(mx::Shape(shape.begin(), shape.end()), dtype);
        },
        "shape"_a, "dtype"_a,
        "Creates an array of zeros that uses no physical memory until it is written.");
    m.def(
        "map_file",
        [](const std::vector<int>& shape, mx::Dtype dtype, const std::string& file, int64_t begin) {
            return tiny_llm_ext::map_file(mx::Shape(shape.begin(), shape.end()), dtype, file,
                                          begin);
        },
        "shape"_a, "dtype"_a, "file"_a, "begin"_a,
        "Creates an array whose memory is a file's bytes from offset `begin` on, read when they "
        "are "
        "first accessed; None where that is not supported.");
    m.def("release_rows", &tiny_llm_ext::release_rows, "x"_a, "first"_a, "last"_a,
          "Returns the physical memory of rows [first, last) of an array from reserve_zeros, whose "
          "contents are then undefined. Keeps memory pages with other rows; a no-op on a GPU.");
    m.def("populate_rows", &tiny_llm_ext::populate_rows, "x"_a, "last"_a,
          "Allocates the physical memory of rows [0, last) of an array from reserve_zeros.");
    m.def("read_gguf_blocks", &tiny_llm_ext::read_gguf_blocks, "file"_a, "begin"_a, "type"_a,
          "rows"_a, "columns"_a, "bits"_a, nb::call_guard<nb::gil_scoped_release>(),
          docs::read_gguf_blocks);
    m.def("huge_pages", &tiny_llm_ext::huge_pages, "bytes"_a, docs::huge_pages);
    m.def("prepack_weight", &tiny_llm_ext::prepack_weight, "matrix"_a, "rows"_a, "memory"_a,
          "offset"_a, nb::call_guard<nb::gil_scoped_release>(), docs::prepack_weight);
    m.def("prepack_weight_from_file", &tiny_llm_ext::prepack_weight_from_file, "matrix"_a, "file"_a,
          "begin"_a, "rows"_a, "memory"_a, "offset"_a, "limit_readahead"_a = false,
          nb::call_guard<nb::gil_scoped_release>(), docs::prepack_weight_from_file);
    m.def("rethrow_task_error", &tiny_llm_ext::rethrow_task_error,
          "Raises the pending exception of a kernel that failed in its stream's thread, if any.");
    m.def("num_threads", &tiny_llm_ext::num_threads,
          "Threads per CPU kernel: TINY_LLM_NUM_THREADS, or the number of usable cores.");
    m.def("set_schedule", &tiny_llm_ext::set_schedule, "name"_a,
          R"(Sets the thread pool's schedule for this process.

Args:
    name: "static": equal runs of chunks; "dynamic": idle threads steal chunks; "": dynamic, or
        static if the learner has not implemented dynamic yet.

Raises:
    ValueError: unknown name.
    RuntimeError: "dynamic" is not implemented yet.
)");
    m.def("simulate_schedule", &tiny_llm_ext::simulate_schedule, "name"_a, "threads"_a, "chunks"_a,
          "delay_first"_a = false,
          R"(Runs a job on dedicated threads, slowed down to provoke contention. For tests.

Args:
    name: "static" or "dynamic".
    threads: number of threads.
    chunks: number of chunks.
    delay_first: delays thread 0's first chunk until all others are done, at most two seconds.

Returns:
    The chunks claimed by a stale worker, which still has the previous job, then those claimed by
    each thread, in order.
)");
    tiny_llm_ext::bind_metal(m);
}
