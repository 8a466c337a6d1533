// How the runtime says what went wrong: one line to Python, then the launch's process ends.
#pragma once
#include "interface.h"

namespace msl {

// `kind` and a sentence. The place is `site` or, if that has no file, the instruction `pc`, which
// Python looks up in the debug information; "{other}" in the sentence becomes the place of `other`.
[[noreturn]] void fail(const char* kind, const char* text, Site site, const void* pc = nullptr,
                       const void* other = nullptr);
[[noreturn]] __attribute__((format(printf, 3, 4))) void fail_at(const char* kind, const void* pc,
                                                                const char* format, ...);

// Signals of the processor (a guard page, a trap) become faults.
void catch_signals();

// Where `write_line` writes: the pipe to Python.
void set_output(int descriptor);
__attribute__((format(printf, 1, 2))) void write_line(const char* format, ...);

}  // namespace msl
