// Fault reports: one line to Python, then the launch's child process exits.
#pragma once
#include "interface.h"

namespace msl {

// Reports a fault with its kind and a sentence. The location is `site` or, without a file, the
// instruction `pc`, resolved in Python from debug information; "{other}" in the sentence becomes
// the location of `other`.
[[noreturn]] void fail(const char* kind, const char* text, Site site, const void* pc = nullptr,
                       const void* other = nullptr);
[[noreturn]] __attribute__((format(printf, 3, 4))) void fail_at(const char* kind, const void* pc,
                                                                const char* format, ...);

// Installs signal handlers that turn guard page hits and traps into faults.
void catch_signals();

// Destination of `write_line`: the pipe to Python.
void set_output(int descriptor);
__attribute__((format(printf, 1, 2))) void write_line(const char* format, ...);

}  // namespace msl
