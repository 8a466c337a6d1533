// The Metal kernels, compiled when they are first used.
//
// A library is what one .metal file has for one dtype: most models compute in one, and a third of
// the kernels is compiled in a third of the time.
#pragma once

#include <string>
#include <vector>

namespace MTL {
class ComputePipelineState;
}

namespace tiny_llm_ext::metal {

/// A kernel, ready to be dispatched.
/// Throws std::runtime_error with the compiler's message if its library does not compile.
MTL::ComputePipelineState* pipeline_of(const std::string& kernel);

/// Compiles the kernels of an operation in a dtype ("float32", "float16" or "bfloat16") if that was
/// not tried before. Returns whether they can be used; the first time they cannot, the compiler's
/// message goes to the standard error.
bool compile_operation(const std::string& operation, const std::string& dtype);

/// What became of the kernels of a file, in all dtypes.
struct LibraryState {
    std::string file, state;  // "compiled", "not tried" or "failed"
    std::string message;      // the compiler's
};
std::vector<LibraryState> library_states();

/// Compiles the kernels of a file in all dtypes.
void compile_file(const std::string& file);

/// Forgets what was tried: for tests, and for another GPU.
void forget_libraries();

}  // namespace tiny_llm_ext::metal
