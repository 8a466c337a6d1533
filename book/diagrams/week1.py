"""Diagrams of Week 1: attention, heads, RoPE, masks, the block, generation, sampling."""

import math

from ._svg import Drawing


def whole_model() -> str:
    """The whole model, from ids to logits."""
    d = Drawing(620, 190)
    parts = [
        ("ids\nB×L", "n", 60),
        ("embedding\nV×E", "a", 86),
        ("block 1", "b", 70),
        ("…", "none", 24),
        ("block 28", "b", 76),
        ("RMSNorm", "c", 78),
        ("head\nE → V", "a", 66),
        ("logits\nB×L×V", "n", 68),
    ]
    x = 2.0
    for i, (label, kind, width) in enumerate(parts):
        if kind == "none":
            d.text(x + width / 2, 60, label, anchor="middle")
        else:
            d.box(x, 30, width, 50, kind, label)
        x += width
        if i + 1 < len(parts):
            d.arrow((x, 55), (x + 12, 55))
            x += 12
    d.text(290, 20, "B×L×E all the way", "small soft", "middle")
    d.box(178, 120, 250, 56, "none")
    d.text(303, 142, "a block: attention, then MLP,", "small", "middle")
    d.text(303, 160, "each after a norm, each added to x", "small", "middle")
    d.line((209, 80), (190, 120), style="dashed")
    d.line((240, 80), (420, 120), style="dashed")
    return d.svg()


def attention_shapes() -> str:
    """Shapes of attention: scores, softmax and weighted mean."""
    d = Drawing(620, 250)
    d.box(10, 60, 70, 90, "a", "query\nL×D")
    d.text(94, 110, "·", "strong", "middle")
    d.box(108, 70, 120, 70, "b", "keyᵀ\nD×S")
    d.text(243, 110, "=", "strong", "middle")
    d.box(258, 60, 120, 90, "c", "scores\nL×S")
    d.text(318, 50, "· scale + mask", "small soft", "middle")
    d.arrow((318, 150), (318, 178))
    d.text(308, 168, "softmax of each row", "small soft", "end")
    d.box(258, 180, 120, 60, "c", "weights L×S\nrows sum to 1")
    d.text(394, 214, "·", "strong", "middle")
    d.box(408, 165, 70, 75, "b", "value\nS×D")
    d.text(494, 214, "=", "strong", "middle")
    d.box(508, 180, 70, 60, "a", "out\nL×D")
    d.text(10, 16, "one row of scores: match of one query with every key", "small")
    d.text(10, 32, "one row of out: weighted mean of the values", "small")
    return d.svg()


def split_heads() -> str:
    """Splitting into heads: reshape, then swap axes."""
    d = Drawing(620, 176)
    d.text(80, 18, "B×L×E", "strong", "middle")
    for row in range(4):
        for head, kind in enumerate("abc"):
            d.box(14 + head * 44, 28 + row * 26, 44, 26, kind, radius=0)
    d.text(80, 150, "a token's heads, side by side", "small soft", "middle")
    d.arrow((160, 80), (215, 80))
    d.text(188, 70, "reshape", "small", "middle")
    d.text(290, 18, "B×L×H×D", "strong", "middle")
    for row in range(4):
        for head, kind in enumerate("abc"):
            d.box(226 + head * 44, 28 + row * 26, 38, 22, kind, radius=0)
    d.text(290, 150, "a view of the same memory", "small soft", "middle")
    d.arrow((370, 80), (425, 80))
    d.text(398, 70, "swap 1, 2", "small", "middle")
    d.text(520, 18, "B×H×L×D", "strong", "middle")
    for head, kind in enumerate("abc"):
        for row in range(4):
            d.box(440 + head * 60, 28 + row * 26, 40, 24, kind, radius=0)
    d.text(520, 150, "each head: L tokens of size D", "small soft", "middle")
    d.text(520, 170, "and matmul repeats over B×H", "small soft", "middle")
    return d.svg()


def rope_rotation() -> str:
    """Two rotated vectors, whose angle depends only on their distance."""
    d = Drawing(620, 210)
    for cx, title, angles in (
        (110, "positions 2 and 5", (40, 100)),
        (310, "positions 7 and 10", (140, 200)),
    ):
        cy = 110
        d.circle(cx, cy, 72, "dashed")
        for angle, name in zip(angles, ("q", "k"), strict=True):
            x = cx + 72 * math.cos(math.radians(angle))
            y = cy - 72 * math.sin(math.radians(angle))
            d.arrow((cx, cy), (x, y))
            d.text(
                cx + 86 * math.cos(math.radians(angle)) - 4,
                cy - 84 * math.sin(math.radians(angle)) + 4,
                name,
                "strong",
            )
        arc = [
            (cx + 30 * math.cos(math.radians(a)), cy - 30 * math.sin(math.radians(a)))
            for a in range(angles[0], angles[1] + 1, 5)
        ]
        d.line(*arc, style="curve")
        d.text(cx, 204, title, "small", "middle")
    d.text(410, 90, "Both pairs are 3 positions apart:", "small")
    d.text(410, 108, "the angle between q and k is the", "small")
    d.text(410, 126, "same, and so is their product.", "small")
    return d.svg()


def rope_pairs() -> str:
    """The two layouts of RoPE's pairs."""
    d = Drawing(620, 170)
    kinds = "abcd"
    for y, title, pairing in (
        (40, "traditional: neighbours", [0, 0, 1, 1, 2, 2, 3, 3]),
        (120, "otherwise (Qwen3): halves", [0, 1, 2, 3, 0, 1, 2, 3]),
    ):
        d.text(10, y - 12, title, "strong")
        for i, pair in enumerate(pairing):
            d.box(10 + i * 48, y, 44, 32, kinds[pair], f"x{i}")
    d.text(410, 60, "One colour is one pair.", "small")
    d.text(410, 78, "Pair i turns by p · base^(−2i/D).", "small")
    d.text(410, 132, "The first D/2 features are the", "small")
    d.text(410, 150, "pairs' x, the last D/2 their y.", "small")
    return d.svg()


def rope_speeds() -> str:
    """Rotation speeds of RoPE's pairs, for D = 128 and base 1,000,000."""
    d = Drawing(620, 190)
    d.text(10, 18, "cos of the angle at positions 0 … 63 (D = 128, base 1,000,000)", "small soft")
    for row, pair in enumerate((0, 8, 16, 32)):
        y = 50 + row * 40
        theta = 1e6 ** (-2 * pair / 128)
        d.text(10, y + 4, f"pair {pair}", "small")
        d.text(66, y + 4, f"period {2 * math.pi / theta:,.0f}", "small soft")
        points = [(180 + p * 6.7, y - 15 * math.cos(p * theta)) for p in range(64)]
        d.line((180, y), (180 + 63 * 6.7, y), style="dashed")
        d.line(*points, style="curve")
    return d.svg()


def grouped_heads() -> str:
    """Query heads that share key/value heads."""
    d = Drawing(620, 170)
    for name, x0, per in (
        ("multi-head", 10, 1),
        ("grouped (Qwen3)", 220, 2),
        ("multi-query", 430, 4),
    ):
        d.text(x0 + 85, 18, name, "strong", "middle")
        for q in range(4):
            kind = "abcd"[q // per]
            d.box(x0 + q * 43, 30, 36, 30, kind, "Q")
            target = x0 + (q // per) * 43 * per + (per - 1) * 21.5
            d.line((x0 + q * 43 + 18, 60), (target + 18, 100))
        for kv in range(4 // per):
            x = x0 + kv * 43 * per + (per - 1) * 21.5
            d.box(x, 100, 36, 30, "abcd"[kv], "K V")
        d.text(x0 + 85, 155, f"H = {4 // per}: cache × {4 // per}/4", "small soft", "middle")
    return d.svg()


def causal_masks() -> str:
    """Causal masks for L = S and L < S."""
    d = Drawing(620, 190)

    def grid(x0: float, y0: float, L: int, S: int, title: str) -> None:
        d.text(x0, y0 - 26, title, "strong")
        for j in range(S):
            d.text(x0 + j * 26 + 13, y0 - 8, str(j), "small soft", "middle")
        for i in range(L):
            d.text(x0 - 12, y0 + i * 26 + 18, str(i + S - L), "small soft", "middle")
            for j in range(S):
                seen = j <= i + S - L
                label = "0" if seen else "−∞"
                d.box(x0 + j * 26, y0 + i * 26, 26, 26, "b" if seen else "n", label, radius=0)

    grid(30, 46, 5, 5, "L = S = 5: a whole prompt")
    grid(300, 46, 2, 7, "L = 2, S = 7: new tokens, old keys")
    d.text(300, 122, "Numbers are positions. The two queries are", "small")
    d.text(300, 140, "the last two of seven: query 0 is at", "small")
    d.text(300, 158, "position 0 + S − L = 5 and sees keys 0 … 5.", "small")
    return d.svg()


def qwen3_attention() -> str:
    """The steps of Qwen3's attention with shapes."""
    d = Drawing(620, 260)
    d.box(10, 110, 60, 40, "n", "x\nB×L×E")
    rows = [("wq", "a", 20, "H_q"), ("wk", "b", 110, "H"), ("wv", "b", 200, "H")]
    for name, kind, y, heads in rows:
        d.arrow((70, 130), (98, y + 20))
        d.box(98, y, 96, 40, kind, f"{name}, reshape\nB×L×{heads}×D")
        if name != "wv":
            d.arrow((194, y + 20), (210, y + 20))
            d.box(210, y, 76, 40, "c", "RMSNorm\n(D)")
            d.arrow((286, y + 20), (302, y + 20))
            d.box(302, y, 52, 40, "e", "RoPE")
        start = 354 if name != "wv" else 194
        d.arrow((start, y + 20), (392, y + 20 if y != 110 else 130), (418, 130))
    d.box(418, 96, 100, 68, "d", "grouped\nattention\nfloat32")
    d.arrow((518, 130), (544, 130))
    d.box(544, 96, 66, 68, "a", "wo\nB×L×E")
    d.text(212, 100, "each head is normed alone, over D", "small soft")
    return d.svg()


def mlp() -> str:
    """The MLP: SwiGLU."""
    d = Drawing(620, 150)
    d.box(10, 55, 70, 40, "n", "x  N..×E")
    d.arrow((80, 75), (130, 35))
    d.arrow((80, 75), (130, 115))
    d.box(130, 15, 90, 40, "a", "w_gate I×E")
    d.box(130, 95, 90, 40, "a", "w_up I×E")
    d.arrow((220, 35), (252, 35))
    d.box(252, 15, 60, 40, "c", "silu")
    d.arrow((312, 35), (362, 65))
    d.arrow((220, 115), (362, 85))
    d.circle(372, 75, 11)
    d.text(372, 80, "×", "strong", "middle")
    d.text(392, 55, "N..×I", "small soft")
    d.arrow((383, 75), (440, 75))
    d.box(440, 55, 90, 40, "a", "w_down E×I")
    d.arrow((530, 75), (560, 75))
    d.text(566, 80, "N..×E")
    return d.svg()


def silu_curve() -> str:
    """SiLU compared with ReLU."""
    d = Drawing(620, 200)

    def at(x: float, y: float) -> tuple[float, float]:
        return 210 + x * 32, 150 - y * 24

    d.line(at(-6, 0), at(6, 0))
    d.line(at(0, -1), at(0, 5.6))
    d.line(at(-6, 0), at(0, 0), at(5.6, 5.6), style="dashed")
    xs = [i / 10 for i in range(-60, 57)]
    d.line(*[at(x, x / (1 + math.exp(-x))) for x in xs], style="curve")
    d.text(420, 60, "silu(x) = x · sigmoid(x)", "strong")
    d.text(420, 80, "dashed: ReLU, max(x, 0)", "small soft")
    d.text(420, 110, "Smallest at x ≈ −1.28: −0.278.", "small")
    d.text(420, 128, "Far left it is 0, far right it is x.", "small")
    return d.svg()


def block() -> str:
    """A transformer block with its two residual additions."""
    d = Drawing(620, 130)
    y = 70
    d.text(6, y + 5, "x")
    d.arrow((18, y), (62, y))
    d.box(62, y - 22, 80, 44, "c", "RMSNorm\n(input)")
    d.arrow((142, y), (160, y))
    d.box(160, y - 22, 80, 44, "a", "attention")
    d.arrow((240, y), (276, y))
    d.circle(287, y, 11)
    d.text(287, y + 5, "+", "strong", "middle")
    d.arrow((298, y), (340, y))
    d.box(340, y - 22, 92, 44, "c", "RMSNorm\n(post-attn.)")
    d.arrow((432, y), (450, y))
    d.box(450, y - 22, 60, 44, "b", "MLP")
    d.arrow((510, y), (546, y))
    d.circle(557, y, 11)
    d.text(557, y + 5, "+", "strong", "middle")
    d.arrow((568, y), (606, y))
    d.arrow((36, y), (36, 20), (287, 20), (287, y - 11))
    d.arrow((318, y), (318, 20), (557, 20), (557, y - 11))
    d.text(160, 14, "residual connection", "small soft", "middle")
    d.text(310, 122, "B×L×E on every line", "small soft", "middle")
    return d.svg()


def recomputing() -> str:
    """Tokens computed in each step without a cache."""
    d = Drawing(620, 210)
    d.text(10, 16, "step", "small soft")
    for step in range(5):
        y = 24 + step * 34
        d.text(16, y + 19, str(step + 1), "small")
        for token in range(4 + step):
            new = token >= 4 + step - 1 if step else True
            d.box(44 + token * 34, y, 32, 26, "b" if new else "d", radius=2)
        d.arrow((44 + (4 + step) * 34, y + 13), (44 + (4 + step) * 34 + 22, y + 13))
        d.text(44 + (4 + step) * 34 + 28, y + 18, f"token {step + 1}", "small")
    d.box(420, 30, 18, 18, "b")
    d.text(446, 44, "computed for the first time", "small")
    d.box(420, 60, 18, 18, "d")
    d.text(446, 74, "computed again, same result", "small")
    d.text(420, 112, "Step 1 is the prefill: the prompt.", "small")
    d.text(420, 130, "Steps 2, 3, … decode.", "small")
    return d.svg()


def top_p_bars() -> str:
    """Tokens kept by top-k and top-p."""
    d = Drawing(620, 200)
    probabilities = [0.42, 0.23, 0.14, 0.09, 0.06, 0.04, 0.02]
    mass = 0.0
    for i, p in enumerate(probabilities):
        kept = mass < 0.75
        d.box(20 + i * 52, 150 - p * 280, 44, p * 280, "b" if kept else "n")
        d.text(42 + i * 52, 143 - p * 280, f"{p:.2f}", "small", "middle")
        d.text(42 + i * 52, 168, f"{mass:.2f}", "small soft", "middle")
        mass += p
    d.text(20, 190, "cumulative mass before the token: kept while below p", "small soft")
    d.text(410, 40, "top-p = 0.75 keeps three:", "strong")
    d.text(410, 62, "0.42 + 0.23 = 0.65 is not enough,", "small")
    d.text(410, 80, "the third reaches 0.79.", "small")
    d.text(410, 110, "The kept tokens are rescaled to sum 1.", "small")
    return d.svg()


def lazy_extension() -> str:
    """From a Python call to the kernel."""
    d = Drawing(620, 150)
    steps = [
        ("axpby(x, y)\nPython", "n"),
        ("bindings.cpp\nnanobind", "e"),
        ("axpby.cpp\nchecks, node", "a"),
        ("mx.eval\nwalks the graph", "n"),
        ("axpby_cpu.cpp\nthe loop", "b"),
    ]
    for i, (label, kind) in enumerate(steps):
        d.box(8 + i * 124, 30, 106, 48, kind, label)
        if i < 4:
            d.arrow((114 + i * 124, 54), (132 + i * 124, 54))
    d.line((8, 100), (368, 100))
    d.text(188, 118, "building: shapes and dtypes, no numbers", "small soft", "middle")
    d.line((384, 100), (612, 100))
    d.text(498, 118, "computing: memory and the kernel", "small soft", "middle")
    return d.svg()
