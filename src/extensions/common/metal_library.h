// Metal kernels, compiled on first use.
//
// A library holds one .metal file's kernels for one dtype. Most models compute in a single dtype,
// so compiling all three would triple the compile time.
#pragma once

#include <string>
#include <vector>

namespace MTL {
class ComputePipelineState;
}

namespace tiny_llm_ext::metal {

/// The compiled pipeline of a kernel.
/// Throws std::runtime_error with the compiler's message if its library does not compile.
MTL::ComputePipelineState* pipeline_of(const std::string& kernel);

/// Compiles an operation's kernels for a dtype ("float32", "float16" or "bfloat16") unless already
/// tried. Returns whether they are usable; the first failure logs the compiler's message to stderr.
bool compile_operation(const std::string& operation, const std::string& dtype);

/// Compilation state of a file's kernels: "failed" if they failed for any dtype.
struct LibraryState {
    std::string file, state;  // "compiled", "not tried" or "failed"
    std::string message;      // compiler's message, if failed
};
std::vector<LibraryState> library_states();

/// Compiles a file's kernels for all dtypes.
void compile_file(const std::string& file);

/// Discards all compilation results: for tests, and when an emulated GPU is attached or detached.
void clear_library_cache();

}  // namespace tiny_llm_ext::metal
