#include "faults.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "memory.h"
#include "scheduler.h"

namespace msl {

static int output = 1;

void set_output(int descriptor) { output = descriptor; }

void write_line(const char* format, ...) {
    char line[2048];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    length = length < (int)sizeof line - 1 ? length : (int)sizeof line - 2;
    line[length++] = '\n';
    for (int done = 0; done < length;) {
        ssize_t n = write(output, line + done, (size_t)(length - done));
        if (n <= 0) {
            _exit(1);
        }
        done += (int)n;
    }
}

void fail(const char* kind, const char* text, Site site, const void* pc, const void* other) {
    const char* file = site.file == nullptr ? "" : site.file;
    write_line("fault\x1f%s\x1f%s\x1f%s\x1f%u\x1f%zx\x1f%zx", kind, text, file, site.line,
               (size_t)pc, (size_t)other);
    _exit(0);
}

void fail_at(const char* kind, const void* pc, const char* format, ...) {
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fail(kind, text, {}, pc);
}

static const void* program_counter(const ucontext_t* context) {
#if defined(__x86_64__)
    return (const void*)context->uc_mcontext.gregs[REG_RIP];
#elif defined(__aarch64__)
    return (const void*)context->uc_mcontext.pc;
#else
    (void)context;
    return nullptr;
#endif
}

static void on_signal(int number, siginfo_t* info, void* context) {
    const void* pc = program_counter((const ucontext_t*)context);
    char who[128];
    describe_current_thread(who, sizeof who);
    if (number == SIGSEGV || number == SIGBUS) {
        report_bad_address(info->si_addr, false, 0, pc);  // exits if a buffer contains the address
        if (in_stack_guard(info->si_addr)) {
            fail_at("stack-overflow", pc, "%s has more than %zu KiB of variables", who,
                    STACK_SIZE >> 10);
        }
        fail_at("out-of-bounds", pc, "%s accessed address %p, which is in no buffer", who,
                info->si_addr);
    }
    if (number == SIGILL || number == SIGTRAP) {
        fail_at("trap", pc, "%s reached unreachable code", who);
    }
    if (number == SIGFPE) {
        fail_at("division-by-zero", pc, "%s divided an integer by zero", who);
    }
    fail_at("crash", pc, "%s was killed by signal %d", who, number);
}

void catch_signals() {
    static char stack[64 << 10];  // for handlers, as the thread's stack may have overflowed
    stack_t alternative{};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action{};
    action.sa_sigaction = on_signal;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    const int numbers[] = {SIGSEGV, SIGBUS, SIGILL, SIGTRAP, SIGFPE};
    for (int number : numbers) {
        sigaction(number, &action, nullptr);
    }
}

}  // namespace msl

void msl_fail(const char* kind, const char* text, msl::Site site) {
    char who[128], message[512];
    msl::describe_current_thread(who, sizeof who);
    if (strcmp(kind, "inactive-lane") == 0) {
        snprintf(message, sizeof message,
                 "%s reads a lane that does not participate, so the value is undefined (%s)", text,
                 who);
        text = message;
    }
    msl::fail(kind, text, site);
}

// ---- Handlers of clang's -fsanitize checks in modes "plain" and "loose" ----

static const void* call_before(const void* return_address) {
    return (const char*)return_address - 1;
}

extern "C" void __ubsan_handle_out_of_bounds_minimal() {
    char who[128];
    msl::describe_current_thread(who, sizeof who);
    msl::fail_at("out-of-bounds", call_before(__builtin_return_address(0)),
                 "%s used an index beyond the end of a fixed-size array", who);
}

extern "C" void __ubsan_handle_divrem_overflow_minimal() {
    char who[128];
    msl::describe_current_thread(who, sizeof who);
    msl::fail_at("division-by-zero", call_before(__builtin_return_address(0)),
                 "%s divided an integer by zero", who);
}
