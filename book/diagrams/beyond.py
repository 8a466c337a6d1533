"""Diagrams of chapters outside the days: roofline, memory speed, emulator, parity."""

import math

from ._svg import Drawing


def roofline() -> str:
    """Roofline of the machine in the benchmark log, with steps of a model."""
    d = Drawing(620, 280)
    bandwidth, peak = 35.0, 461.0

    def at(intensity: float, gflops: float) -> tuple[float, float]:
        x = 60 + (math.log10(intensity) + 0.5) / 4 * 520
        y = 240 - (math.log10(gflops) - 1) / 2.2 * 210
        return x, y

    d.line((60, 240), (590, 240))
    d.line((60, 240), (60, 20))
    for value in (1, 10, 100, 1000):
        x, _ = at(value, 10)
        d.text(x, 256, f"{value}", "small soft", "middle")
    for value in (10, 100, 1000):
        _, y = at(1, value)
        d.text(54, y + 4, f"{value}", "small soft", "end")
    d.text(590, 274, "operations per byte read", "small soft", "end")
    d.text(66, 18, "GFLOP/s", "small soft")
    ridge = peak / bandwidth
    d.line(at(0.35, 0.35 * bandwidth), at(ridge, peak), at(2800, peak), style="curve")
    d.text(160, 130, "35.0 GB/s", "small", "end")
    d.text(450, at(1, peak)[1] - 8, "461 GFLOP/s", "small")
    for intensity, name in ((3.76, "1 request"), (60.2, "16 requests")):
        limit = min(peak, intensity * bandwidth)
        x, y = at(intensity, limit)
        d.dot(x, y)
        d.text(x + 8, y + 16, name, "small")
    x, y = at(1266, peak)
    d.dot(x, y)
    d.text(x, y + 18, "a prompt of 512", "small", "middle")
    x, _ = at(ridge, 10)
    d.line((x, 240), at(ridge, peak), style="dashed")
    d.text(x + 6, 232, f"ridge: {ridge:.0f} operations per byte", "small soft")
    return d.svg()


def memory_speed() -> str:
    """GB/s of successive versions of the quantized matmul on one row."""
    d = Drawing(620, 190)
    rows = [
        ("no prefetching", 7, ""),
        ("the next block, in one burst", 9, ""),
        ("line by line while computing, one block ahead", 12, ""),
        ("two blocks ahead", 23, ""),
        ("plain loads in the same pattern", 31, "limit"),
    ]
    for i, (name, speed, kind) in enumerate(rows):
        y = 14 + i * 32
        d.text(270, y + 16, name, "small", "end")
        d.box(280, y, speed * 7.5, 22, "n" if kind else "b")
        d.text(286 + speed * 7.5, y + 16, f"{speed} GB/s per thread", "small")
    d.text(10, 184, "AVX-512 BF16, one row, AMD Zen 5 (log of 21 November 2026)", "small soft")
    return d.svg()


def emulator() -> str:
    """Stages of the emulator, from a .metal file to a fault report."""
    d = Drawing(620, 190)
    steps = [
        ("kernel.metal\nunchanged", "n"),
        ("preprocess\nMSL headers", "a"),
        ("rewrite\nattributes", "a"),
        ("clang: types,\naddress spaces", "c"),
        ("machine code\nfor this CPU", "b"),
    ]
    for i, (label, kind) in enumerate(steps):
        d.box(6 + i * 124, 16, 108, 48, kind, label)
        if i < 4:
            d.arrow((114 + i * 124, 40), (130 + i * 124, 40))
    d.arrow((556, 64), (556, 92))
    d.box(330, 94, 284, 84, "none")
    d.text(342, 112, "one threadgroup at a time", "small")
    for i in range(16):
        d.box(342 + i * 16, 120, 14, 20, "b", radius=2)
    d.text(342, 158, "each thread a fiber; a lane waits at a", "small")
    d.text(342, 172, "barrier or a simd operation for the others", "small")
    d.arrow((330, 136), (250, 136))
    d.box(30, 100, 220, 72, "d")
    d.text(42, 120, "detects: divergent barriers,", "small")
    d.text(42, 138, "out-of-bounds accesses,", "small")
    d.text(42, 156, "results that depend on lane order", "small")
    return d.svg()


def first_divergence() -> str:
    """Difference by layer: rounding errors compared with a bug."""
    d = Drawing(620, 190)

    def at(layer: float, error: float) -> tuple[float, float]:
        return 60 + layer * 30, 150 - (error + 7) * 20

    d.line((60, 160), (590, 160))
    d.line((60, 160), (60, 14))
    for layer in range(0, 17, 4):
        d.text(60 + layer * 30, 176, str(layer), "small soft", "middle")
    d.text(590, 186, "after layer", "small soft", "end")
    d.text(66, 20, "relative difference (logarithmic)", "small soft")
    rounding = [at(i, -6.5 + 0.06 * i) for i in range(17)]
    bug = [at(i, -6.5 + 0.06 * i) for i in range(6)]
    bug += [at(i, -1.5 + 0.03 * i) for i in range(6, 17)]
    d.line(*rounding, style="dashed")
    d.line(*bug, style="curve")
    x, y = bug[6]
    d.dot(x, y)
    d.text(x + 10, y + 20, "here: a jump, not a slope", "small")
    d.text(430, 146, "rounding alone grows slowly", "small soft")
    return d.svg()


def course_map() -> str:
    """The engine at the end of the course, with parts colored by week."""
    d = Drawing(640, 300)
    for week, (kind, title) in enumerate(
        (("a", "Week 1"), ("b", "Week 2"), ("c", "Week 3"), ("d", "Week 4"))
    ):
        d.box(70 + week * 130, 8, 18, 18, kind)
        d.text(96 + week * 130, 22, title, "small")
    d.text(10, 66, "prompts", "strong")
    for row in range(3):
        d.box(10, 78 + row * 30, 84, 22, "n", ("What is …", "Write a …", "Count …")[row], "small")
    d.arrow((98, 119), (128, 119))
    d.box(132, 50, 130, 138, "c")
    d.text(197, 70, "scheduler", "strong", "middle")
    for row, part in enumerate(("token budget", "prefix cache", "preemption", "draft tokens")):
        d.text(197, 94 + row * 24, part, "small", "middle")
    d.arrow((266, 119), (296, 119))
    d.text(365, 46, "the model, layer by layer", "small soft", "middle")
    d.box(300, 54, 130, 30, "a", "RMSNorm, RoPE")
    d.box(300, 90, 130, 30, "b", "flash attention")
    d.box(300, 126, 130, 30, "a", "MLP: SwiGLU")
    d.box(300, 162, 130, 30, "b", "4-bit weights")
    d.arrow((434, 119), (464, 119))
    d.box(468, 84, 100, 30, "a", "sampler")
    d.box(468, 124, 100, 30, "a", "detokenizer")
    d.arrow((572, 139), (594, 139))
    d.text(598, 143, "Paris", "strong")
    d.box(132, 212, 298, 30, "c", "pages of keys and values")
    d.arrow((365, 196), (365, 210))
    d.arrow((197, 192), (197, 210))
    d.box(132, 252, 436, 34, "d", "SIMD and Metal kernels at memory speed, graph capture")
    return d.svg()
