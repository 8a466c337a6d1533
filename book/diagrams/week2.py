"""Diagrams of Week 2: the cache, quantized weights, flash attention, batches."""

import mlx.core as mx

from tiny_llm.kv_cache.full import grow_buffer

from ._svg import Drawing


def kv_cache_step() -> str:
    """A decode step with a cache."""
    d = Drawing(620, 200)
    d.text(10, 18, "keys and values in the cache", "small soft")
    for i in range(8):
        d.box(10 + i * 40, 28, 38, 30, "b", f"k v {i}", "small")
    d.box(10 + 8 * 40, 28, 38, 30, "c", "k v 8", "small")
    for i in range(3):
        d.box(10 + (9 + i) * 40, 28, 38, 30, "none", radius=3)
    d.text(500, 47, "room for 3 more", "small soft")
    d.box(10, 120, 70, 36, "c", "token 8")
    d.arrow((80, 138), (116, 138))
    d.box(116, 120, 96, 36, "a", "wq, wk, wv")
    d.arrow((164, 120), (164, 96), (348, 96), (348, 60))
    d.text(160, 88, "one key and value per head: appended", "small", "middle")
    d.arrow((212, 138), (256, 138))
    d.box(256, 120, 190, 36, "d", "attention: 1 query, 9 keys")
    d.arrow((300, 60), (300, 74), (410, 74), (410, 119), style="dashed")
    d.text(418, 100, "all are read", "small soft")
    d.arrow((446, 138), (490, 138))
    d.box(490, 120, 90, 36, "n", "logits 1×V")
    d.text(256, 176, "all other operations process one token", "small soft")
    return d.svg()


def cache_growth() -> str:
    """Capacity and length of a buffer over time, computed by `grow_buffer`."""
    d = Drawing(460, 240)

    def at(tokens: float, size: float) -> tuple[float, float]:
        return 50 + tokens / 1400 * 380, 200 - size / 2000 * 170

    d.line(at(0, 0), at(1400, 0))
    d.line(at(0, 0), at(0, 2000))
    d.line(at(0, 0), at(1400, 1400), style="dashed")
    token = mx.zeros((1, 1, 1, 1))
    buffer, points, steps = None, [at(0, 0)], []
    for length in range(1400):
        before = 0 if buffer is None else buffer.shape[2]
        buffer = grow_buffer(buffer, token, length + 1)  # lazy: only shapes are computed
        if buffer.shape[2] != before:
            points += [at(length, before), at(length, buffer.shape[2])]
            steps.append((length, buffer.shape[2]))
    assert buffer is not None
    d.line(*points, at(1400, buffer.shape[2]), style="curve")
    for tokens, size in steps:
        x, y = at(tokens, size)
        if tokens:
            d.text(x + 6, y - 5, f"{size:,}")
        else:
            d.text(x - 4, y + 4, f"{size:,}", anchor="end")
    d.text(240, 226, "tokens appended, to 1,400", "soft", "middle")
    d.text(60, 20, "line: capacity; dashed: length; a step: a copy", "soft")
    return d.svg()


def packed_nibbles() -> str:
    """Eight 4-bit values in a word, groups with scale and bias."""
    d = Drawing(620, 220)
    d.text(10, 16, "one row of w: I weights, in groups of 128", "small soft")
    for g in range(4):
        d.box(10 + g * 150, 24, 146, 26, "abce"[g], f"group {g}")
    d.line((10, 50), (60, 84), style="dashed")
    d.line((156, 50), (560, 84), style="dashed")
    d.text(60, 78, "16 words of 32 bits", "small soft")
    for w in range(8):
        d.box(60 + w * 56, 86, 54, 24, "a", f"word {w}" if w < 7 else "…", "small")
    d.line((60, 110), (40, 142), style="dashed")
    d.line((114, 110), (560, 142), style="dashed")
    for i in range(8):
        d.box(40 + i * 65, 144, 63, 26, "a", f"q{7 - i}", "mono")
        d.text(71 + i * 65, 184, f"{31 - 4 * i}…{28 - 4 * i}", "small soft", "middle")
    d.text(
        40, 208, "bits: the lowest nibble is the first weight.  weight = q · scale + bias", "small"
    )
    return d.svg()


def matmul_intensity() -> str:
    """Reuse of each weight in decode and prefill."""
    d = Drawing(620, 190)
    d.text(110, 18, "decode: M = 1", "strong", "middle")
    d.box(20, 70, 60, 14, "a", "")
    d.text(50, 64, "a 1×I", "small", "middle")
    d.box(110, 30, 90, 110, "b", "w\nO×I")
    d.text(110, 164, "each weight read, used once", "small soft", "middle")
    d.text(430, 18, "prefill: M = 512", "strong", "middle")
    d.box(300, 30, 70, 110, "a", "a\n512×I")
    d.box(400, 30, 90, 110, "b", "w\nO×I")
    d.arrow((490, 85), (514, 85))
    d.box(516, 30, 90, 110, "c", "out\n512×O")
    d.text(430, 164, "each weight read, used 512 times", "small soft", "middle")
    return d.svg()


def factored_sum() -> str:
    """The scale factored out of a group's sum."""
    d = Drawing(620, 150)
    d.text(10, 18, "one group, one output", "small soft")
    for i in range(6):
        d.box(10 + i * 44, 28, 40, 26, "a", f"q{i}" if i < 5 else "…")
        d.box(10 + i * 44, 64, 40, 26, "b", f"a{i}" if i < 5 else "…")
    d.arrow((280, 41), (330, 58))
    d.arrow((280, 77), (330, 64))
    d.box(330, 46, 90, 30, "c", "Σ q·a")
    d.arrow((280, 90), (330, 112))
    d.box(330, 98, 90, 30, "e", "Σ a")
    d.arrow((420, 61), (466, 78))
    d.arrow((420, 113), (466, 94))
    d.box(466, 66, 146, 40, "n", "scale·Σqa + bias·Σa")
    d.text(10, 124, "Σ a is the same for every output:", "small soft")
    d.text(10, 140, "it is computed once per group.", "small soft")
    return d.svg()


def metal_grid() -> str:
    """Grid, threadgroups and simdgroups of a matmul."""
    d = Drawing(620, 200)
    d.text(10, 16, "grid: the output M×O", "small soft")
    for row in range(3):
        for column in range(5):
            kind = "c" if (row, column) == (1, 2) else "n"
            d.box(10 + column * 38, 24 + row * 38, 36, 36, kind)
    d.text(10, 158, "one threadgroup", "small")
    d.text(10, 174, "makes one tile", "small")
    d.line((124, 62), (240, 24), style="dashed")
    d.line((124, 98), (240, 150), style="dashed")
    d.box(240, 24, 150, 126, "c")
    for i in range(4):
        d.box(250 + (i % 2) * 68, 34 + (i // 2) * 56, 62, 50, "a", f"simd-\ngroup {i}", "small")
    d.text(240, 168, "shares threadgroup memory", "small")
    d.text(240, 184, "(32 KB) and barriers", "small")
    d.line((380, 34), (430, 30), style="dashed")
    d.line((380, 84), (430, 116), style="dashed")
    for i in range(32):
        d.box(430 + (i % 8) * 22, 30 + (i // 8) * 22, 20, 20, "b", radius=2)
    d.text(430, 140, "32 lanes in lockstep:", "small")
    d.text(430, 156, "simd_sum, simd_max,", "small")
    d.text(430, 172, "8×8 matrices in registers", "small")
    return d.svg()


def flash_tiles() -> str:
    """Tiles of the causal triangle."""
    d = Drawing(620, 230)
    n, size = 6, 30
    x0, y0 = 90, 30
    d.text(x0 + n * size / 2, 18, "keys, tile by tile", "small soft", "middle")
    d.text(x0 - 10, y0 + n * size / 2, "queries", "small soft", "end")
    for i in range(n):
        for j in range(n):
            kind = "b" if j < i else "c" if j == i else "none"
            d.box(x0 + j * size, y0 + i * size, size, size, kind, radius=0)
    d.arrow((x0 + 5, y0 + 3.5 * size), (x0 + 3.4 * size, y0 + 3.5 * size))
    d.box(320, 40, 20, 20, "b")
    d.text(348, 55, "all visible: no mask is read", "small")
    d.box(320, 70, 20, 20, "c")
    d.text(348, 85, "the diagonal: masked element by element", "small")
    d.box(320, 100, 20, 20, "none")
    d.text(348, 115, "all hidden: skipped, not even loaded", "small")
    d.text(320, 150, "State carried across tiles, per query:", "small")
    d.text(320, 170, "m  largest score so far", "small mono")
    d.text(320, 188, "l  sum of exp(s − m)", "small mono")
    d.text(320, 206, "o  sum of exp(s − m) · v   (D numbers)", "small mono")
    return d.svg()


def online_softmax() -> str:
    """Online softmax: a numeric example with two tiles."""
    d = Drawing(620, 150)
    for x, title, lines, kind in (
        (10, "tile 1: scores 2, 1", ["m = 2", "l = e⁰ + e⁻¹ = 1.368"], "b"),
        (
            220,
            "tile 2: scores 4, 3",
            ["m' = 4", "old l in the new unit:", "1.368 · e²⁻⁴ = 0.185"],
            "c",
        ),
        (430, "together", ["l' = 0.185 + e⁰ + e⁻¹", "   = 1.553", "the same as in one pass"], "a"),
    ):
        d.box(x, 30, 180, 84, kind)
        d.text(x + 90, 20, title, "small strong", "middle")
        for i, line in enumerate(lines):
            d.text(x + 12, 54 + i * 20, line, "small mono")
    d.arrow((190, 72), (218, 72))
    d.arrow((400, 72), (428, 72))
    d.text(310, 138, "o is multiplied by the same factor e²⁻⁴", "small soft", "middle")
    return d.svg()


def chunked_prefill() -> str:
    """A long prompt among decoding requests, whole and in chunks."""
    d = Drawing(620, 190)
    d.text(10, 20, "whole prompt at once", "strong")
    d.text(10, 46, "A decodes", "small")
    d.text(10, 72, "B prefills", "small")
    x = 90.0
    for _ in range(3):
        d.box(x, 34, 14, 18, "b")
        x += 17
    d.box(x, 60, 260, 18, "c", "512 tokens", "small")
    x += 263
    for _ in range(6):
        d.box(x, 34, 14, 18, "b")
        d.box(x, 60, 14, 18, "a")
        x += 17
    d.line((144, 43), (404, 43), style="dashed")
    d.text(274, 38, "A waits", "small soft", "middle")
    d.text(10, 116, "in chunks of 128", "strong")
    d.text(10, 142, "A decodes", "small")
    d.text(10, 168, "B prefills", "small")
    x = 90.0
    for _ in range(3):
        d.box(x, 130, 14, 18, "b")
        x += 17
    for _ in range(4):
        d.box(x, 156, 64, 18, "c", "128", "small")
        x += 67
        d.box(x, 130, 14, 18, "b")
        x += 17
    for _ in range(4):
        d.box(x, 130, 14, 18, "b")
        d.box(x, 156, 14, 18, "a")
        x += 17
    return d.svg()


def chunk_mask() -> str:
    """The masks of three chunks of one prompt."""
    d = Drawing(620, 150)
    size = 16
    for c, (x0, S) in enumerate(((20, 4), (200, 8), (420, 12))):
        d.text(x0, 22, f"chunk {c}: L = 4, S = {S}", "small strong")
        for i in range(4):
            for j in range(S):
                kind = "b" if j <= i + S - 4 else "n"
                d.box(x0 + j * size, 32 + i * size, size, size, kind, radius=0)
    d.text(20, 122, "Stacked on top of each other they are the mask of the whole prompt:", "small")
    d.text(20, 140, "the rows are the same, and so are the results.", "small")
    return d.svg()


def batch_slots() -> str:
    """Right-aligned slots with padding."""
    d = Drawing(620, 190)
    lengths = (5, 9, 0, 7)
    for slot, length in enumerate(lengths):
        y = 30 + slot * 34
        d.text(10, y + 18, f"slot {slot}", "small")
        for j in range(9):
            real = j >= 9 - length
            d.box(60 + j * 34, y, 32, 26, "b" if real else "n", "k v" if real else "−∞", "small")
        what = f"{length} tokens" if length else "idle"
        d.text(376, y + 18, what, "small soft")
    d.text(60, 20, "B×H×S_max×D, as the mask sees it", "small soft")
    d.text(450, 70, "All end in one column,", "small")
    d.text(450, 88, "so that the newest keys", "small")
    d.text(450, 106, "are aligned", "small")
    d.text(450, 124, "for everyone.", "small")
    return d.svg()


def continuous_batching() -> str:
    """Static and continuous batches over time."""
    d = Drawing(620, 230)

    def timeline(y0: float, title: str, rows: list[list[tuple[float, float, str, str]]]) -> None:
        d.text(10, y0, title, "strong")
        for slot, items in enumerate(rows):
            y = y0 + 8 + slot * 27
            d.text(10, y + 16, f"slot {slot}", "small")
            for start, length, kind, label in items:
                d.box(60 + start * 5.4, y, length * 5.4, 22, kind, label, "small")

    timeline(
        20,
        "static batches",
        [
            [(0, 20, "a", "A"), (20, 25, "none", "idle"), (46, 30, "d", "D")],
            [(0, 45, "b", "B"), (46, 18, "e", "E"), (64, 12, "none", "idle")],
            [(0, 30, "c", "C"), (30, 15, "none", "idle"), (46, 25, "a", "F"), (71, 5, "none", "")],
        ],
    )
    timeline(
        136,
        "continuous",
        [
            [(0, 20, "a", "A"), (21, 30, "d", "D")],
            [(0, 45, "b", "B"), (46, 25, "a", "F")],
            [(0, 30, "c", "C"), (31, 18, "e", "E")],
        ],
    )
    d.line((60, 226), (600, 226))
    d.text(600, 222, "time", "small soft", "end")
    return d.svg()
