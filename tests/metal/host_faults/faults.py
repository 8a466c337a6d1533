"""Seeded faults: original source texts and their faulty replacements.

A text that ends with `;` is a statement, a text that starts with `.` initializes a struct's field,
and any other text is an expression.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Seeded fault.

    Attributes:
        operation: operation whose calls expose the fault.
        file: path relative to src/extensions.
        right: original text, found exactly once.
        message: text that the emulated GPU's report must contain.
    """

    name: str
    operation: str
    file: str
    right: str
    wrong: str
    message: str


DIFFERS = "differs"  # the result differs from the CPU's
BEYOND = "out-of-bounds"


def fault(name: str, operation: str, right: str, wrong: str, message: str = DIFFERS) -> Fault:
    """Creates a fault in the operation's encoder."""
    return Fault(name, operation, f"src/{operation}/{operation}_metal.cpp", right, wrong, message)


def shared_fault(
    name: str, operation: str, right: str, wrong: str, message: str = DIFFERS
) -> Fault:
    """Creates a fault in code shared by all encoders."""
    return Fault(name, operation, "common/metal_device.cpp", right, wrong, message)


def row_fault(name: str, operation: str, right: str, wrong: str, message: str = DIFFERS) -> Fault:
    """Creates a fault in the encoder of row operations."""
    return Fault(name, operation, "common/row_operation_metal.cpp", right, wrong, message)


BIND = "rows.push_back(array);"
BIND_REVERSED = "rows.insert(rows.begin(), array);"
STRIDE = "static_cast<long>(stride)"
PARTS = "src/matmul/matmul_encoder_metal.cpp"

FAULTS = [
    # Faults: a wrong array is bound at a buffer index.
    row_fault("gate and up are swapped", "swiglu", BIND, BIND_REVERSED),
    row_fault("input and gate are swapped", "sigmoid_gate", BIND, BIND_REVERSED),
    row_fault("weight and x are swapped", "rms_norm", BIND, BIND_REVERSED, BEYOND),
    fault(
        "cos and sin are swapped",
        "qk_norm_rope",
        "metal::encode(stream(), launch, {x, weight, cos, sin}, {out});",
        "metal::encode(stream(), launch, {x, weight, sin, cos}, {out});",
    ),
    fault(
        "keys and values are swapped",
        "flash_attention",
        "encode(stream(), params, format, {query, key, value, mask, context_lens, sinks}, out);",
        "encode(stream(), params, format, {query, value, key, mask, context_lens, sinks}, out);",
    ),
    fault(
        "partial results and statistics are swapped",
        "flash_attention",
        "metal::encode(stream, flash_attention_decode_launch(params, format), inputs,\n"
        "                  {out, partial, statistics});",
        "metal::encode(stream, flash_attention_decode_launch(params, format), inputs,"
        " {out, statistics, partial});",
        BEYOND,
    ),
    fault(
        "offsets and tokens are swapped",
        "cache_write",
        "metal::encode(stream(), launch, {tokens, offsets}, {out});",
        "metal::encode(stream(), launch, {offsets, tokens}, {out});",
        BEYOND,
    ),
    shared_fault(
        "the params' index is one too high",
        "axpby",
        "encoder.set_bytes(launch.params.data(), static_cast<int>(launch.params.size()), index);",
        "encoder.set_bytes(launch.params.data(), int(launch.params.size()), index + 1);",
        "is not bound",
    ),
    # Faults: wrong sizes and flags in kernel parameters.
    fault(
        "one row too many",
        "quantized_matmul",
        "static_cast<int64_t>(out.size()) / O",
        "static_cast<int64_t>(out.size()) / O + 1",
        BEYOND,
    ),
    fault(
        "one key too many", "flash_attention", ".S = key.shape(2)", ".S = key.shape(2) + 1", BEYOND
    ),
    fault("sinks are ignored", "flash_attention", ".has_sinks = has_sinks_", ".has_sinks = false"),
    fault("not causal", "flash_attention", ".causal = causal_", ".causal = false"),
    fault(
        "context lengths are ignored",
        "flash_attention",
        ".has_context_lens = has_context_lens_",
        ".has_context_lens = false",
    ),
    fault(
        "all masks are treated as float32",
        "flash_attention",
        "has_mask_ ? mask_kind_of(mask.dtype()) : ATTENTION_MASK_NONE",
        "has_mask_ ? ATTENTION_MASK_FLOAT32 : ATTENTION_MASK_NONE",
        BEYOND,
    ),
    fault(
        "unaligned heads count as aligned",
        "flash_attention",
        "rows_are_aligned(key) && rows_are_aligned(value)",
        "true",
        BEYOND,
    ),
    fault(
        "one page too many",
        "paged_attention",
        ".max_pages = in[3].shape(1)",
        ".max_pages = in[3].shape(1) + 1",
    ),
    fault(
        "page sinks are ignored", "paged_attention", ".has_sinks = has_sinks_", ".has_sinks = false"
    ),
    fault("never causal", "paged_attention", ".causal = causal_", ".causal = false"),
    fault(
        "the page size is halved",
        "paged_attention",
        ".page_size = key_pages.shape(2)",
        ".page_size = std::max(1, key_pages.shape(2) / 2)",
    ),
    fault(
        "the number of slots is halved",
        "paged_cache_write",
        "static_cast<long>(out.shape(0)) * out.shape(2)",
        "static_cast<long>(out.shape(0)) * out.shape(2) / 2",
    ),
    fault("rows are half as long", "quantized_embedding", "out.shape(-1)", "out.shape(-1) / 2"),
    # Faults: wrong strides and offsets.
    row_fault("row strides are ignored", "swiglu", STRIDE, "params.D"),
    row_fault("row strides of a slice are ignored", "add_bias", STRIDE, "params.D"),
    row_fault(
        "the gate uses the stride of the norm's input",
        "gated_rms_norm",
        STRIDE,
        f"i == 0 ? {STRIDE} : params.strides[0]",
    ),
    row_fault(
        "a strided bias is read as contiguous", "add_bias", BIND, "rows.push_back(inputs[i]);"
    ),
    row_fault("each row has its own bias", "add_bias", "inputs[i].ndim() == 1", "false", BEYOND),
    fault(
        "values use the keys' strides",
        "flash_attention",
        "set_strides(params.value_strides, value, 3);",
        "set_strides(params.value_strides, key, 3);",
    ),
    fault(
        "strided heads are read as contiguous",
        "qk_norm_rope",
        "heads_are_rows ? inputs[0] : metal::row_contiguous(inputs[0], stream())",
        "inputs[0]",
    ),
    fault(
        "strided inputs are read as contiguous",
        "quantized_embedding",
        "contiguous_inputs.push_back(metal::row_contiguous(input, stream()));",
        "contiguous_inputs.push_back(input);",
    ),
    fault(
        "heads use the tokens' stride",
        "cache_write",
        "static_cast<long>(tokens.strides(1))",
        "static_cast<long>(tokens.strides(2))",
    ),
    shared_fault(
        "a copy ignores the strides",
        "rms_norm",
        "copy_launch(shape, strides, static_cast<int>(x.itemsize()), max_threads)",
        "copy_launch(shape, std::vector<int64_t>(strides.size(), 1),"
        " static_cast<int>(x.itemsize()), max_threads)",
    ),
    shared_fault(
        "a strided input counts as contiguous",
        "rms_norm",
        "x.flags().row_contiguous || x.size() == 0",
        "true",
    ),
    # Faults: wrong grid sizes.
    row_fault(
        "the last row has no threadgroup",
        "rms_norm",
        "Extent{.x = params.M}",
        "Extent{.x = params.M - 1}",
    ),
    shared_fault(
        "grid and threadgroup are swapped",
        "matmul",
        "encoder.dispatch_threadgroups(size_of(launch.groups), size_of(launch.threads));",
        "encoder.dispatch_threadgroups(size_of(launch.threads), size_of(launch.groups));",
        "",
    ),
    Fault(
        "the last heads have no threadgroup",
        "flash_attention",
        "src/flash_attention/flash_attention_launch.cpp",
        "return static_cast<int64_t>(params.B) * params.H;",
        "return static_cast<int64_t>(params.B) * params.H - 1;",
        DIFFERS,
    ),
    Fault(
        "the last outputs have no threadgroup",
        "quantized_matmul",
        "src/matmul/matmul_variants.cpp",
        "ceil_div(O, MATVEC_OUTPUTS * simdgroups)",
        "O / (MATVEC_OUTPUTS * simdgroups)",
        DIFFERS,
    ),
    shared_fault(
        "more threads than the pipeline allows",
        "few threads",
        "chosen.threads.count() > allowed",
        "false",
        "expected at most 64 threads",
    ),
    # Faults: missing dependencies between commands, and wrong memory ownership.
    fault(
        "the splits are not merged",
        "flash_attention",
        "params.splits > 1",
        "false",
        BEYOND,
    ),
    Fault(
        "the partial sums are not added",
        "matmul",
        PARTS,
        "encode(stream, sum, {sums}, {out});",
        "",
        DIFFERS,
    ),
    Fault(
        "missing barrier before the sum",
        "matmul",
        PARTS,
        "encode(stream, launch, inputs, {sums});",
        "auto all = inputs; all.push_back(sums); encode(stream, launch, all, {});",
        "bound with set_input_array",
    ),
    shared_fault(
        "a temporary is freed too early",
        "matmul",
        "mx::metal::get_command_encoder(stream).add_temporary(x);",
        "",
        "neither an input nor an output nor a temporary",
    ),
    shared_fault(
        "a cache is overwritten while being read",
        "cache_write",
        "(overwrite || x.is_donatable()) && x.flags().row_contiguous",
        "x.flags().row_contiguous",
        "overwrites input 0",
    ),
    shared_fault(
        "states are overwritten while being read",
        "gated_delta_rule",
        "(overwrite || x.is_donatable()) && x.flags().row_contiguous",
        "x.flags().row_contiguous",
        "overwrites input 0",
    ),
    shared_fault("a strided cache is not copied", "cache_write", "copy(x, out, stream);", ""),
    fault(
        "a and b are swapped",
        "gated_delta_rule",
        "metal::encode(stream(), factors_launch, {qkv, a, b, small[0], small[1]}, {factors});",
        "metal::encode(stream(), factors_launch, {qkv, b, a, small[0], small[1]}, {factors});",
    ),
    fault(
        "read and write slots are swapped",
        "gated_delta_rule",
        "metal::encode(stream(), recurrence_launch, {qkv, factors, small[2], small[3], small[4]},\n"
        "                  {states, o});",
        "metal::encode(stream(), recurrence_launch, {qkv, factors, small[2], small[4], small[3]},"
        " {states, o});",
    ),
    fault(
        "one channel too many", "causal_conv1d", ".C = x.shape(1)", ".C = x.shape(1) + 1", BEYOND
    ),
    Fault(
        "the output reuses an input that is still needed",
        "swiglu",
        "common/row_operation.cpp",
        "allocate_or_reuse(outputs[i], inputs[operation_.first_donated + i]);",
        "outputs[i].copy_shared_buffer(inputs[operation_.first_donated + i]);",
        "overwrites input 0",
    ),
]
