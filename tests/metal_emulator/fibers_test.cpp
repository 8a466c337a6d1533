// Two fibers switch to each other in every iteration of a loop. A correct switch preserves the
// loop's integers and doubles, which the compiler keeps in registers. Prints "ok" if all sums are
// correct. test_fibers.py builds this file for each implementation of fibers.h.
#include "../../tools/metal_emulator/runtime/fibers.h"

#include <stdio.h>
#include <stdlib.h>

static msl::Context scheduler, fibers[2];
static int running, finished;
static long sums[2];
static double products[2];

static void count() {
    const int me = running;
    long sum = 0;
    double a = 1 + me, b = 2 + me, c = 3 + me, d = 4 + me;
    for (int i = 0; i < 1000; ++i) {
        sum += me + i;
        a += b * 1e-3;
        b += c * 1e-3;
        c += d * 1e-3;
        d += a * 1e-3;
        running = 1 - me;
        msl::switch_context(fibers[me], fibers[1 - me]);
    }
    sums[me] = sum;
    products[me] = a + b + c + d;
    if (++finished == 2) {
        msl::switch_context(fibers[me], scheduler);
    }
    running = 1 - me;
    msl::switch_context(fibers[me], fibers[1 - me]);
    abort();
}

static double expected(int me) {
    double a = 1 + me, b = 2 + me, c = 3 + me, d = 4 + me;
    for (int i = 0; i < 1000; ++i) {
        a += b * 1e-3;
        b += c * 1e-3;
        c += d * 1e-3;
        d += a * 1e-3;
    }
    return a + b + c + d;
}

int main() {
    msl::reserve_stacks(2);
    msl::prepare(fibers[0], 0, count);
    msl::prepare(fibers[1], 1, count);
    msl::switch_context(scheduler, fibers[0]);
    const bool right = sums[0] == 499500 && sums[1] == 500500 && products[0] == expected(0) &&
                       products[1] == expected(1);
    puts(right ? "ok" : "wrong");
    return right ? 0 : 1;
}
