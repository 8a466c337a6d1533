// The operations as Python functions. The docstrings are what `help(tiny_llm_ext)` shows.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings_metal.h"
#include "common/instruction_set.h"
#include "common/malloc_policy.h"
#include "common/threads.h"
#include "src/argmax/argmax.h"
#include "src/axpby/axpby.h"
#include "src/cache_write/cache_write.h"
#include "src/flash_attention/flash_attention.h"
#include "src/interleave/interleave.h"
#include "src/matmul/matmul.h"
#include "src/paged_attention/paged_attention.h"
#include "src/paged_cache_write/paged_cache_write.h"
#include "src/qk_norm_rope/qk_norm_rope.h"
#include "src/quantized_embedding/quantized_embedding.h"
#include "src/quantized_matmul/quantized_matmul.h"
#include "src/quantized_matmul/quantized_matmul_each.h"
#include "src/recording/recorder.h"
#include "src/rms_norm/rms_norm.h"
#include "src/swiglu/swiglu.h"

namespace mx = mlx::core;
namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_ext, m) {
    tiny_llm_ext::keep_freed_memory();

    m.def("axpby", &tiny_llm_ext::axpby, "x"_a, "y"_a, "alpha"_a, "beta"_a, nb::kw_only(),
          "stream"_a = nb::none(),
          R"(alpha · x + beta · y, elementwise.

Args:
    x, y: arrays whose shapes broadcast, any dtypes but complex64.
    alpha, beta: numbers.
    stream: where to compute; MLX's default if None.

Returns:
    The broadcast shape, in the promoted dtype (float32 for integers).
)");

    m.def("argmax", &tiny_llm_ext::argmax, "x"_a, nb::kw_only(), "stream"_a = nb::none(),
          R"(Where each row is largest: the first place, if there are several.

Args:
    x: N..×V, float32, float16 or bfloat16. NaN is never the largest.
    stream: where to compute; MLX's default if None.

Returns:
    N.. in uint32.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("quantized_matmul", &tiny_llm_ext::quantized_matmul, "scales"_a, "biases"_a,
          "group_size"_a, "bits"_a, "a"_a, "b"_a, "transpose_b"_a = true, nb::kw_only(),
          "stream"_a = nb::none(),
          R"(a · bᵀ, where b is quantized: value = q · scale + bias.

Args:
    scales, biases: O×(I/group_size), float16 or bfloat16.
    group_size: 32, 64 or 128.
    bits: 4 or 8.
    a: N..×I, float16 or bfloat16.
    b: O×(I·bits/32) uint32, the lowest bits of a word first.
        b, scales and biases may be interleaved: (O/R)×W×R for O×W, R = interleaved_rows().
    transpose_b: must be True.
    stream: where to compute; MLX's default if None.

Returns:
    N..×O in the dtype of a.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("quantized_matmul_each", &tiny_llm_ext::quantized_matmul_each, "scales"_a, "biases"_a,
          "group_size"_a, "bits"_a, "a"_a, "b"_a, nb::kw_only(), "stream"_a = nb::none(),
          R"(a · bᵀ for several quantized matrices b: the same bits as one quantized_matmul each.

Args:
    scales, biases, b: lists, one array for each matrix; matrices may differ in O.
    group_size, bits, a: as in quantized_matmul.
    stream: where to compute; MLX's default if None.

Returns:
    A list of N..×O in the dtype of a.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("rms_norm", &tiny_llm_ext::rms_norm, "x"_a, "weight"_a, "eps"_a, nb::kw_only(),
          "stream"_a = nb::none(),
          R"(x / √(mean(x²) + eps) · weight, over the last axis.

Args:
    x: N..×D, float32, float16 or bfloat16.
    weight: D, dtype of x.
    eps: keeps a zero vector from dividing by zero.
    stream: where to compute; MLX's default if None.

Returns:
    N..×D in the dtype of x.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("add_rms_norm", &tiny_llm_ext::add_rms_norm, "x"_a, "y"_a, "weight"_a, "eps"_a,
          nb::kw_only(), "stream"_a = nb::none(),
          R"(x + y, and its rms_norm: a residual connection and the normalization after it.

Args:
    x, y: N..×D, of one shape and dtype; the rest as in rms_norm.

Returns:
    x + y and rms_norm(x + y), both N..×D.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("swiglu", &tiny_llm_ext::swiglu, "gate"_a, "up"_a, nb::kw_only(), "stream"_a = nb::none(),
          R"(silu(gate) · up, elementwise.

Args:
    gate, up: N..×I, of one shape and dtype: float32, float16 or bfloat16.
    stream: where to compute; MLX's default if None.

Returns:
    N..×I in their dtype.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("qk_norm_rope", &tiny_llm_ext::qk_norm_rope, "x"_a, "weight"_a, "eps"_a, "cos"_a, "sin"_a,
          nb::kw_only(), "stream"_a = nb::none(),
          R"(RMSNorm of each head, then RoPE, laid out for attention.

Args:
    x: B×L×H×D, float32, float16 or bfloat16; D even.
    weight: D, dtype of x.
    eps: keeps a zero vector from dividing by zero.
    cos, sin: B×L×D/2 or 1×L×D/2, float32; pair i is (x[i], x[i + D/2]).
    stream: where to compute; MLX's default if None.

Returns:
    B×H×L×D in the dtype of x.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("flash_attention", &tiny_llm_ext::flash_attention, "query"_a, "key"_a, "value"_a,
          "scale"_a = nb::none(), "causal"_a = false, "mask"_a = nb::none(),
          "context_lens"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
          R"(softmax(query · keyᵀ · scale + mask) · value, without the matrix of scores.

Args:
    query: N..×H_q×L×D, float32, float16 or bfloat16; D at most 256.
    key, value: N..×H×S×D in the dtype of query; H divides H_q. Slices of a larger buffer are read
        where they are.
    scale: multiplies the scores; 1/√D if None.
    causal: query i sees keys j ≤ i + S − L only.
    mask: broadcastable to N..×H_q×L×S; floating (added to the scores) or bool (true is visible).
    context_lens: B int32; sequence b has its first context_lens[b] keys only, and the causal rule
        has that number in place of S.
    stream: where to compute; MLX's default if None.

Returns:
    N..×H_q×L×D in the dtype of query. A row that may see no key is zero.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def(
        "cache_write",
        nb::overload_cast<const mx::array&, const mx::array&, const mx::array&, mx::StreamOrDevice>(
            &tiny_llm_ext::cache_write),
        "buffer"_a, "tokens"_a, "offsets"_a, nb::kw_only(), "stream"_a = nb::none(),
        "The same; an array's offsets, B int32, are not known yet: any that is none is as −1.");
    m.def("cache_write",
          nb::overload_cast<const mx::array&, const mx::array&, const std::vector<int>&,
                            mx::StreamOrDevice>(&tiny_llm_ext::cache_write),
          "buffer"_a, "tokens"_a, "offsets"_a, nb::kw_only(), "stream"_a = nb::none(),
          R"(New keys or values into a cache's buffer, in place if nothing else refers to it.

Args:
    buffer: B×H×C×D, any dtype.
    tokens: B×H×L×D of the same dtype.
    offsets: where each sequence's tokens go, B numbers from 0 to C − L; −1 leaves one as it is.
    stream: where to compute; MLX's default if None.

Returns:
    B×H×C×D: the buffer with the tokens.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("paged_attention", &tiny_llm_ext::paged_attention, "query"_a, "key_pages"_a,
          "value_pages"_a, "block_table"_a, "context_lens"_a, "scale"_a = nb::none(),
          "causal"_a = true, nb::kw_only(), "stream"_a = nb::none(),
          R"(Attention to keys and values in pages, with L queries for each of B sequences.

Args:
    query: B×H_q×L×D, float32, float16 or bfloat16; D at most 256.
    key_pages, value_pages: P×H×page_size×D in the dtype of query; H divides H_q.
    block_table: B×max_pages int32, the pages of each sequence in order.
    context_lens: B int32, how many keys each sequence has, the new ones included.
    scale: multiplies the scores; 1/√D if None.
    causal: query i of sequence b sees keys j ≤ i + context_lens[b] − L only.
    stream: where to compute; MLX's default if None.

Returns:
    B×H_q×L×D in the dtype of query. A row that may see no key is zero; the rows of a sequence with
    a key in a page that is not there are NaN.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("paged_attention_varlen", &tiny_llm_ext::paged_attention_varlen, "query"_a, "key_pages"_a,
          "value_pages"_a, "cu_seqlens_q"_a, "context_lens"_a, "block_table"_a,
          "scale"_a = nb::none(), nb::kw_only(), "stream"_a = nb::none(),
          R"(paged_attention, causal, for sequences with different numbers of queries.

Args:
    query: T×H_q×D: the queries of all sequences, one after the other.
    key_pages, value_pages, context_lens, block_table, scale: as in paged_attention.
    cu_seqlens_q: B+1 int32, from 0 to T: sequence s has the queries from cu_seqlens_q[s] on, up to
        cu_seqlens_q[s + 1].
    stream: where to compute; MLX's default if None.

Returns:
    T×H_q×D in the dtype of query.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("paged_cache_write", &tiny_llm_ext::paged_cache_write, "pages"_a, "tokens"_a, "slots"_a,
          nb::kw_only(), "stream"_a = nb::none(),
          R"(New keys or values into pages, in place if nothing else refers to them.

Args:
    pages: P×H×page_size×D, float32, float16 or bfloat16.
    tokens: T×H×D or B×H×L×D of the same dtype.
    slots: T or B×L int32: each token's place, page · page_size + row. One outside of the pages, as
        −1, leaves its token unwritten.
    stream: where to compute; MLX's default if None.

Returns:
    P×H×page_size×D: the pages with the tokens.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("quantized_embedding", &tiny_llm_ext::quantized_embedding, "ids"_a, "scales"_a,
          "biases"_a, "group_size"_a, "bits"_a, "weight"_a, nb::kw_only(), "stream"_a = nb::none(),
          R"(Rows of a quantized table: value = q · scale + bias.

Args:
    ids: N.., int32 or uint32; a negative one counts from the end, one beyond the table gives NaN.
    scales, biases: V×(E/group_size), float32, float16 or bfloat16.
    group_size: 32, 64 or 128.
    bits: 4 or 8.
    weight: V×(E·bits/32) uint32, the lowest bits of a word first.
        On the CPU, weight, scales and biases may be interleaved: (V/R)×W×R for V×W.
    stream: where to compute; MLX's default if None.

Returns:
    N..×E in the dtype of scales.

Raises:
    ValueError: an argument that is not as above.
)");

    m.def("matmul", &tiny_llm_ext::matmul, "a"_a, "b"_a, nb::kw_only(), "stream"_a = nb::none(),
          R"(a · bᵀ.

Args:
    a: N..×I, float32, float16 or bfloat16.
    b: O×I, dtype of a.
    stream: where to compute; MLX's default if None.

Returns:
    N..×O in their dtype.

Raises:
    ValueError: an argument that is not as above.
)");

    using tiny_llm_ext::Recorder;
    nb::class_<Recorder>(
        m, "Recorder",
        R"(The graphs of one function of arrays, each replayed as a single node on the CPU.

    recorder = Recorder()
    outputs = recorder.replay(inputs)
    if outputs is None:  # no recording for their shapes and dtypes
        blanks = recorder.placeholders(inputs)
        recorder.record(blanks, function(*blanks))
)")
        .def(nb::init<>())
        .def("replay", &Recorder::replay, "inputs"_a,
             R"(The function's outputs for `inputs`, computed by one node of the graph.

Args:
    inputs: arrays. Those that the function writes into are overwritten if nobody else refers to
        them when the node is computed, and are copied otherwise.

Returns:
    The outputs; None if nothing was recorded for these shapes and dtypes on this thread's stream.
)")
        .def_static("placeholders", &Recorder::placeholders, "inputs"_a,
                    "Arrays without data, of the shapes and dtypes of `inputs`.")
        .def("record", &Recorder::record, "placeholders"_a, "outputs"_a,
             R"(Keeps the operations between placeholders and outputs.

Args:
    placeholders: from `placeholders`.
    outputs: what a function made of them. Other arrays that it read are constants from now on.

Raises:
    ValueError: an operation that is neither the extension's nor a view, or is on a GPU or on another
        stream; one that writes into what is read afterwards; or none at all.
)");

    m.def(
        "instruction_set", [] { return tiny_llm_ext::name_of(tiny_llm_ext::instruction_set()); },
        "The vector instructions that CPU kernels use: TINY_LLM_CPU_ISA, or the best there are.");
    m.def(
        "instruction_sets",
        [] {
            std::vector<std::string> names;
            for (tiny_llm_ext::InstructionSet set : tiny_llm_ext::instruction_sets()) {
                names.push_back(tiny_llm_ext::name_of(set));
            }
            return names;
        },
        "What TINY_LLM_CPU_ISA may name on this machine, the slowest first.");
    m.def("interleaved_rows", &tiny_llm_ext::interleaved_rows,
          "How many rows of weights the CPU's kernels want interleaved; 0 if they only read rows.");
    m.def("large_pages", &tiny_llm_ext::large_pages, "bytes"_a,
          R"(Memory for interleaved weights: in pages of 2 MB, where Linux has them for the asking.

Args:
    bytes: how many there should be at least.

Returns:
    P×512 uint64, whatever is in them.

Raises:
    ValueError: a negative number.
)");
    m.def("interleave", &tiny_llm_ext::interleave, "matrix"_a, "rows"_a, "memory"_a, "offset"_a,
          R"(O×W -> (O/R)×W×R, at once, into memory that it shares: see tiny_llm.kernels.interleaved.

Args:
    matrix: numbers of 2 or 4 bytes.
    rows: R, how many go together; O is a multiple of it.
    memory: of large_pages(); what it had there is overwritten.
    offset: in bytes, a multiple of 64; all of the matrix must fit from there.

Raises:
    ValueError: an argument that is not as above.
)");
    m.def("num_threads", &tiny_llm_ext::num_threads,
          "How many threads a CPU kernel uses: TINY_LLM_NUM_THREADS, or the cores there are.");
    tiny_llm_ext::bind_metal(m);
}
