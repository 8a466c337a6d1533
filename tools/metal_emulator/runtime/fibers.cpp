// The context switch in assembly is about twenty times faster than swapcontext, which makes a
// system call for the signal mask each time; a launch switches millions of times. MSL_UCONTEXT
// selects swapcontext regardless.
#include "fibers.h"

#include <stdint.h>
#include <sys/mman.h>

#ifndef MSL_UCONTEXT
extern "C" void msl_switch(msl::Context* from, msl::Context to);

// Pushes the callee-saved registers, switches stacks, pops them.
#if defined(__x86_64__)
constexpr int SAVED_WORDS = 6;  // registers on the stack, below the return address
asm(R"(
.text
.globl msl_switch
.type msl_switch, @function
msl_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size msl_switch, . - msl_switch
)");
#else
constexpr int SAVED_WORDS = 20;  // x19 … x30, d8 … d15
asm(R"(
.text
.globl msl_switch
.type msl_switch, %function
msl_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size msl_switch, . - msl_switch
)");
#endif
#endif

namespace msl {

static char* stacks;
static size_t stacks_size;
constexpr size_t STACK_GUARD = 4 << 20;  // bytes

void reserve_stacks(size_t count) {
    stacks_size = count * STACK_SIZE;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    const size_t size = STACK_GUARD + stacks_size;
    stacks = (char*)mmap(nullptr, size, PROT_NONE, flags, -1, 0) + STACK_GUARD;
    mprotect(stacks, stacks_size, PROT_READ | PROT_WRITE);
}

bool on_a_stack(const void* address) {
    return (const char*)address >= stacks && (const char*)address < stacks + stacks_size;
}

bool in_stack_guard(const void* address) {
    return (const char*)address < stacks && (const char*)address >= stacks - STACK_GUARD;
}

bool stack_overflowed(size_t i) {
    return (char*)__builtin_frame_address(0) < stacks + i * STACK_SIZE;
}

void prepare(Context& context, size_t i, void (*start)()) {
    char* bottom = stacks + i * STACK_SIZE;
    // Stack tops are staggered: otherwise every thread's copy of a variable would map to the same
    // set of the L1 cache.
    char* top = bottom + STACK_SIZE - 64 - (i % 32) * 192 - (i / 32) * 64;
#ifdef MSL_UCONTEXT
    getcontext(&context);
    context.uc_stack.ss_sp = bottom;
    context.uc_stack.ss_size = (size_t)(top - bottom);
    context.uc_link = nullptr;
    makecontext(&context, start, 0);
#elif defined(__x86_64__)
    void** stack = (void**)((uintptr_t)top & ~(uintptr_t)15);
    *--stack = nullptr;  // return address of `start`; aligns the stack as after a call
    *--stack = (void*)start;
    for (int word = 0; word < SAVED_WORDS; ++word) {
        *--stack = nullptr;
    }
    context = stack;
#else
    void** stack = (void**)((uintptr_t)top & ~(uintptr_t)15) - SAVED_WORDS;
    for (int word = 0; word < SAVED_WORDS; ++word) {
        stack[word] = nullptr;
    }
    stack[11] = (void*)start;  // x30, the target of `ret`
    context = stack;
#endif
}

void switch_context(Context& from, Context& to) {
#ifdef MSL_UCONTEXT
    swapcontext(&from, &to);
#else
    msl_switch(&from, to);
#endif
}

}  // namespace msl
