"""Diagrams of Week 3: pages, block tables, ragged batches, the prefix tree, speculation."""

from ._svg import Drawing


def slots_and_pages() -> str:
    """The same three requests in slots and in pages."""
    d = Drawing(620, 230)
    lengths = {"A": 9, "B": 3, "C": 6}
    kinds = {"A": "a", "B": "b", "C": "c"}
    d.text(10, 18, "slots: contiguous, as long as the longest request", "strong")
    for row, (name, length) in enumerate(lengths.items()):
        y = 28 + row * 28
        d.text(10, y + 16, name, "strong")
        for i in range(16):
            d.box(30 + i * 28, y, 27, 22, kinds[name] if i < length else "n", radius=1)
    d.text(490, 60, "18 of 48 used", "small")
    d.text(10, 136, "pages of 4: allocated on demand", "strong")
    table = ["A", "B", "A", "C", "A", "C", "", ""]
    used = {"A": 9, "B": 3, "C": 6}
    for page, name in enumerate(table):
        x = 10 + page * 74
        d.text(x + 33, 160, f"page {page}", "small soft", "middle")
        for i in range(4):
            filled = bool(name) and used[name] > 0
            d.box(x + i * 17, 166, 16, 24, kinds[name] if filled else "n", radius=1)
            if filled:
                used[name] -= 1
        if name:
            d.text(x + 33, 208, name, "small strong", "middle")
        else:
            d.text(x + 33, 208, "free", "small soft", "middle")
    d.text(10, 226, "18 of 24 used, and the next request can use any free page", "small")
    return d.svg()


def block_table() -> str:
    """Lookup of a position in the block table."""
    d = Drawing(620, 230)
    d.text(10, 18, "block_table of request A", "strong")
    for i, page in enumerate((0, 2, 4, -1)):
        d.box(10 + i * 60, 28, 56, 28, "a" if page >= 0 else "n", str(page), "mono")
        d.text(38 + i * 60, 72, f"{4 * i} … {4 * i + 3}", "small soft", "middle")
    d.text(270, 40, "context_lens[A] = 9", "small mono")
    d.text(270, 62, "key 6: page block_table[6 // 4] = 2,", "small mono")
    d.text(270, 80, "row 6 % 4 = 2", "small mono")
    for page in range(5):
        x = 10 + page * 120
        d.text(x + 30, 140, f"page {page}", "small soft", "middle")
        for i in range(4):
            mine = page in (0, 2) or (page == 4 and i == 0)
            key = {0: i, 2: 4 + i, 4: 8}.get(page) if mine else None
            kind = "c" if key == 6 else "a" if mine else "n"
            d.box(x + i * 27, 148, 26, 30, kind, "" if key is None else str(key), "small")
    d.arrow((98, 76), (98, 104), (317, 126), (317, 146), style="dashed")
    d.text(
        10,
        206,
        "P×H×page_size×D: all pages of the pool, in one array that never moves",
        "small soft",
    )
    return d.svg()


def ragged_batch() -> str:
    """A padded batch compared with a ragged batch."""
    d = Drawing(620, 200)
    d.text(10, 18, "padded: B×L, mostly padding", "strong")
    for row, (name, length, kind) in enumerate((("A", 1, "a"), ("B", 1, "b"), ("C", 12, "c"))):
        y = 26 + row * 24
        d.text(10, y + 15, name, "small strong")
        for i in range(12):
            d.box(30 + i * 30, y, 28, 20, kind if i < length else "n", radius=1)
    d.text(400, 62, "36 rows computed for 14 tokens", "small")
    d.text(10, 124, "ragged: T tokens, concatenated", "strong")
    x = 30
    for kind, length in (("a", 1), ("b", 1), ("c", 12)):
        for _ in range(length):
            d.box(x, 132, 28, 20, kind, radius=1)
            x += 30
    for position, text in ((30, "0"), (60, "1"), (90, "2"), (450, "14")):
        d.line((position - 1, 128), (position - 1, 160))
        d.text(position - 1, 174, text, "small mono", "middle")
    d.text(470, 174, "cu_seqlens_q", "small mono")
    return d.svg()


def step_plan() -> str:
    """Allocation of a token budget in successive steps."""
    d = Drawing(620, 210)
    d.text(10, 18, "budget of 16 tokens a step", "strong")
    steps = [
        [("a", 1, "A"), ("c", 15, "C, prompt")],
        [("a", 1, "A"), ("c", 9, "C"), ("b", 6, "B, prompt")],
        [("a", 1, "A"), ("c", 1, "C"), ("b", 10, "B")],
        [("a", 1, "A"), ("c", 1, "C"), ("b", 1, "B")],
    ]
    for row, chunks in enumerate(steps):
        y = 30 + row * 40
        d.text(10, y + 20, f"step {row}", "small")
        x = 60.0
        for kind, tokens, label in chunks:
            d.box(x, y, tokens * 30 - 2, 30, kind, label, "small")
            x += tokens * 30
        d.line((540, y - 4), (540, y + 34), style="dashed")
    d.text(60, 204, "decoding first; the remaining budget goes to prompt chunks", "small soft")
    return d.svg()


def prefix_tree() -> str:
    """Prefix tree: prompts share full pages with equal tokens."""
    d = Drawing(420, 268)
    d.box(160, 8, 100, 30, "n", "root")
    d.arrow((210, 38), (210, 58))
    d.box(110, 58, 200, 46, "b")
    d.text(210, 76, "page 0, 2 owners", "small", "middle")
    d.text(210, 94, "“You are a help”", "small soft", "middle")
    for x, page, text, kind, who in (
        (10, 1, "“ful one. What”", "a", "A"),
        (230, 3, "“ful one. Who”", "c", "B"),
    ):
        d.arrow((210, 104), (x + 90, 126))
        d.box(x, 126, 180, 46, kind)
        d.text(x + 90, 144, f"page {page}, 1 owner", "small", "middle")
        d.text(x + 90, 162, text, "small soft", "middle")
        d.arrow((x + 90, 172), (x + 90, 192))
        d.box(x, 192, 180, 46, "none")
        d.text(x + 90, 210, f"{who}'s tail", "small", "middle")
        d.text(x + 90, 228, "not full, so not shared", "small soft", "middle")
    d.text(10, 260, "A page in the tree is never written again, so sharing needs no copy.", "small")
    return d.svg()


def preemption() -> str:
    """Preemption: the youngest request's pages are freed."""
    d = Drawing(620, 190)
    for x0, title, owners in (
        (10, "8 pages, all in use", "AAABBBCC"),
        (220, "A needs one: C is preempted", "AAABBB.."),
        (430, "A continues, C waits", "AAABBBA."),
    ):
        d.text(x0, 18, title, "small strong")
        for i, owner in enumerate(owners):
            kind = {"A": "a", "B": "b", "C": "c"}.get(owner, "n")
            d.box(x0 + (i % 4) * 44, 28 + (i // 4) * 36, 42, 34, kind, owner.strip("."))
    d.text(
        10,
        130,
        "C keeps its tokens and loses its pages. When it is rescheduled, it recomputes the keys",
        "small",
    )
    d.text(
        10,
        148,
        "and values of prompt and output in chunks, as if they were one prompt:",
        "small",
    )
    d.text(10, 166, "the same numbers, so the output continues unchanged.", "small")
    return d.svg()


def speculation() -> str:
    """Speculative decoding: draft, verify, accept."""
    d = Drawing(620, 220)
    d.text(10, 20, "draft, one by one", "small soft")
    words = ["the", "capital", "of", "France", "was"]
    for i, word in enumerate(words):
        d.box(130 + i * 92, 6, 86, 28, "n" if i == 0 else "c", word)
    d.text(10, 80, "target, at once", "small soft")
    verdict = ["capital", "of", "France", "is", "a"]
    for i, word in enumerate(verdict):
        kind = "b" if i < 3 else "d" if i == 3 else "none"
        d.arrow((173 + i * 92, 34), (173 + i * 92, 64))
        d.box(130 + i * 92, 66, 86, 28, kind, word)
    d.text(10, 134, "output", "small soft")
    for i, word in enumerate(verdict[:4]):
        d.box(130 + i * 92, 120, 86, 28, "b" if i < 3 else "d", word)
    d.text(510, 138, "4 tokens, 1 call", "small")
    d.text(
        10,
        180,
        "The target agrees with three draft tokens. The fourth is rejected: the target's token",
        "small",
    )
    d.text(
        10,
        198,
        "replaces it, the cache is rewound, and the next round begins.",
        "small",
    )
    return d.svg()


def rejection() -> str:
    """Rejection sampling: min(p, q) and the residual."""
    d = Drawing(620, 210)
    p = [0.5, 0.3, 0.15, 0.05]
    q = [0.3, 0.5, 0.1, 0.1]
    for i, (target, draft) in enumerate(zip(p, q, strict=True)):
        x = 30 + i * 96
        both = min(target, draft)
        d.box(x, 160 - target * 250, 34, target * 250, "d", radius=0)
        d.box(x, 160 - both * 250, 34, both * 250, "b", radius=0)
        d.box(x + 38, 160 - draft * 250, 34, draft * 250, "n", radius=0)
        d.text(x + 17, 176, f"p {target:g}", "small", "middle")
        d.text(x + 55, 176, f"q {draft:g}", "small soft", "middle")
    d.box(430, 40, 18, 18, "b")
    d.text(456, 54, "min(p, q): drafts accepted", "small")
    d.box(430, 68, 18, 18, "d")
    d.text(456, 82, "p − q: drawn after a rejection", "small")
    d.box(430, 96, 18, 18, "n")
    d.text(456, 110, "q: the draft's distribution", "small")
    d.text(430, 140, "accepted: 0.3 + 0.3 + 0.1 + 0.05", "small")
    d.text(430, 158, "= 0.75 of all drafts", "small")
    d.text(
        30,
        200,
        "green and red together are p: for any draft, the target's distribution",
        "small soft",
    )
    return d.svg()
