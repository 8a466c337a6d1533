#include "common/metal_library.h"

#include <iostream>
#include <map>
#include <mutex>
#include <sstream>
#include <stdexcept>

#include "common/gpu.h"
#include "common/half.h"
#include "common/metal_launch.h"
#include "common/metal_sources.h"
#include "mlx/backend/metal/device.h"

namespace tiny_llm_ext {

namespace metal {

namespace {

constexpr const char* DTYPES[] = {"float32", "float16", "bfloat16"};

bool begins_with(const std::string& text, const std::string& start) {
    return text.compare(0, start.size(), start) == 0;
}

// The .metal file of a kernel: the longest file name that is a prefix of the kernel's name.
std::string file_of(const std::string& kernel) {
    std::string best;
    for (const auto& [file, text] : sources()) {
        if (begins_with(kernel, file) && file.size() > best.size()) {
            best = file;
        }
    }
    return best;
}

// First dtype in a kernel's name; float32 for kernels that only copy bytes, whose names contain no
// dtype.
std::string dtype_of(const std::string& kernel) {
    size_t first = std::string::npos;
    std::string found = DTYPES[0];
    for (const char* dtype : DTYPES) {
        const size_t at = kernel.find(std::string("_") + dtype);
        if (at < first) {
            first = at;
            found = dtype;
        }
    }
    return found;
}

// Removes other dtypes' kernels from a file's source: each instantiation is on a separate line, as
// INSTANTIATE…(float16, …) or INSTANTIATE…("float16", …).
std::string text_for(const std::string& file, const std::string& dtype) {
    std::istringstream lines(sources().at(file));
    std::string text, line;
    while (std::getline(lines, line)) {
        bool is_other = false;
        if (begins_with(line, "INSTANTIATE")) {
            const auto arguments = line.find('(') + 1;
            const std::string first = line.substr(arguments + (line[arguments] == '"' ? 1 : 0));
            for (const char* other : DTYPES) {
                is_other |= begins_with(first, other) && other != dtype;
            }
        }
        text += (is_other ? "" : line) + "\n";
    }
    return text;
}

MTL::Library* library_of(const std::string& file, const std::string& dtype) {
    return mx::metal::device(mx::Device::gpu).get_library("tiny_llm_" + file + "_" + dtype, [&] {
        return text_for(file, dtype);
    });
}

std::mutex mutex, operations_mutex;  // guard `results` and `operations`, respectively
// Compiler's message, empty on success, for each file and dtype.
std::map<std::pair<std::string, std::string>, std::string> results;
std::map<std::string, bool> operations;  // operation + dtype -> whether all its kernels compile

// Compiles a file's kernels for a dtype, once. Returns the compiler's message; empty on success.
std::string compile(const std::string& file, const std::string& dtype) {
    std::lock_guard lock(mutex);
    const auto found = results.find({file, dtype});
    if (found != results.end()) {
        return found->second;
    }
    std::string message;
    try {
        library_of(file, dtype);
    } catch (const std::runtime_error& error) {
        message = error.what();
    }
    return results[{file, dtype}] = message;
}

// Names of the .metal files whose kernels an operation's encoder launches: the operation's files
// (readable kernels only if there are no others) and shared ones.
std::vector<std::string> files_of(const std::string& operation) {
    std::vector<std::string> all, fast;
    for (const auto& [file, text] : sources()) {
        if (file == operation || begins_with(file, operation + "_")) {
            all.push_back(file);
            if (file != operation + "_readable") {
                fast.push_back(file);
            }
        }
    }
    auto files = fast.empty() ? all : fast;
    files.push_back("metal_copy");
    if (operation == "quantized_matmul") {
        files.push_back("matmul_tile");  // contains the kernel that sums the splits
    }
    return files;
}

}  // namespace

MTL::ComputePipelineState* pipeline_of(const std::string& kernel) {
    const std::string file = file_of(kernel), dtype = dtype_of(kernel);
    const std::string message = file.empty() ? "unknown kernel" : compile(file, dtype);
    if (!message.empty()) {
        throw std::runtime_error("[" + kernel + "] " + message);
    }
    return mx::metal::device(mx::Device::gpu).get_kernel(kernel, library_of(file, dtype));
}

bool compile_operation(const std::string& operation, const std::string& dtype) {
    std::lock_guard lock(operations_mutex);
    const auto found = operations.find(operation + dtype);
    if (found != operations.end()) {
        return found->second;
    }
    bool compiles = true;
    for (const auto& file : files_of(operation)) {
        const std::string message = compile(file, dtype);
        if (!message.empty() && compiles) {
            compiles = false;
            std::cerr << "tiny-llm: " << operation << " in " << dtype
                      << " runs on the CPU, because this GPU's compiler rejects " << file
                      << ".metal; `check-installation` lists all kernels.\n"
                      << message << std::endl;
        }
    }
    return operations[operation + dtype] = compiles;
}

std::vector<LibraryState> library_states() {
    std::lock_guard lock(mutex);
    std::vector<LibraryState> states;
    for (const auto& [file, text] : sources()) {
        LibraryState state = {file, "not tried", ""};
        for (const char* dtype : DTYPES) {
            const auto found = results.find({file, dtype});
            if (found == results.end() || state.state == "failed") {
                continue;
            }
            state.state = found->second.empty() ? "compiled" : "failed";
            state.message = found->second;
        }
        states.push_back(state);
    }
    return states;
}

void clear_library_cache() {
    std::scoped_lock lock(mutex, operations_mutex);
    results.clear();
    operations.clear();
}

void compile_file(const std::string& file) {
    for (const char* dtype : DTYPES) {
        compile(file, dtype);
    }
}

}  // namespace metal

mx::Stream stream_for(const std::string& operation, mx::Dtype dtype, mx::StreamOrDevice s) {
    const mx::Stream stream = mx::to_stream(s);
    if (!is_gpu(stream)) {
        return stream;
    }
    const std::string name = dtype == mx::float16    ? "float16"
                             : dtype == mx::bfloat16 ? "bfloat16"
                                                     : "float32";
    return metal::compile_operation(operation, name) ? stream : mx::default_stream(mx::Device::cpu);
}

}  // namespace tiny_llm_ext
