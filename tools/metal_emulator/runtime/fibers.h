// Fibers: the threads of a threadgroup, suspended and resumed by switching stacks.
#pragma once
#include <stddef.h>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(MSL_UCONTEXT)
#define MSL_UCONTEXT
#endif
#ifdef MSL_UCONTEXT
#include <ucontext.h>
#endif

namespace msl {

#ifdef MSL_UCONTEXT
typedef ucontext_t Context;
#else
typedef void* Context;  // stack pointer; all other saved state is on the stack
#endif

constexpr size_t STACK_SIZE = 256 << 10;  // bytes

// Reserves `count` stacks; pages are committed when touched.
void reserve_stacks(size_t count);
// Whether `address` is in one of the stacks.
bool on_a_stack(const void* address);
// Whether `address` is in the guard region below the first stack.
bool in_stack_guard(const void* address);
// Whether the running fiber has overflowed stack number `i`.
bool stack_overflowed(size_t i);
// Prepares `context` to enter `start` on stack number `i`; `start` never returns.
void prepare(Context& context, size_t i, void (*start)());
// Saves the running context in `from` and resumes `to`.
void switch_context(Context& from, Context& to);

}  // namespace msl
