"""Diagrams of the optional days: products sorted by expert, a layer on two ranks."""

from ._svg import Drawing

EXPERTS = [[3, 1], [1, 0], [3, 1]]  # selected by three tokens
KINDS = {0: "a", 1: "b", 3: "c"}


def experts() -> str:
    """Products of tokens and experts: by token, sorted by expert, and restored."""
    d = Drawing(470, 356)
    products = [(token, expert) for token, chosen in enumerate(EXPERTS) for expert in chosen]
    order = sorted(range(len(products)), key=lambda p: products[p][1])
    width, gap = 66, 10

    def middle(place: int) -> float:
        return 10 + place * (width + gap) + width / 2

    def row(y: float, shown: list[int]) -> None:
        for place, product in enumerate(shown):
            token, expert = products[product]
            x = middle(place) - width / 2
            d.box(x, y, width, 26, KINDS[expert], f"token {token}", "small")

    d.text(10, 16, "products by token; a colour is an expert", "strong")
    row(26, list(range(6)))
    for place, (_, expert) in enumerate(products):
        d.text(middle(place), 66, f"to expert {expert}", "small soft", "middle")
    for place, product in enumerate(order):
        d.arrow((middle(product), 74), (middle(place), 106))
    d.text(10, 126, "sorted: x[order // K]", "strong")
    row(134, order)
    start = 0
    for expert in (0, 1, 3):
        count = sum(products[p][1] == expert for p in order)
        left, right = middle(start) - width / 2, middle(start + count - 1) + width / 2
        label = f"expert {expert}" if count == 1 else f"expert {expert}: {count} rows at once"
        d.box(left, 174, right - left, 30, KINDS[expert], label, "small strong")
        start += count
    d.text(10, 222, "No token selected expert 2: its weights are not read.", "small soft")
    for place, product in enumerate(order):
        d.arrow((middle(place), 232), (middle(product), 264))
    d.text(10, 284, "and back: [places]", "strong")
    row(292, list(range(6)))
    for token in range(3):
        left, right = middle(2 * token) - width / 2, middle(2 * token + 1) + width / 2
        d.line((left, 324), (left, 330), (right, 330), (right, 324))
        d.text((left + right) / 2, 348, f"sum of token {token}", "small", "middle")
    return d.svg()


def split_layer() -> str:
    """The MLP of a layer on two ranks: rows, then columns, then one sum."""
    d = Drawing(470, 330)
    for rank, x in ((0, 10), (1, 245)):
        kind = "ab"[rank]
        d.text(x, 16, f"rank {rank}", "strong")
        d.box(x, 26, 215, 26, "e", "x, the same on both", "small")
        d.arrow((x + 60, 54), (x + 60, 76))
        for half in range(2):
            mine = half == rank
            label = "its rows of gate, up" if mine else ""
            d.box(x, 80 + half * 28, 130, 26, (kind if mine else "n"), label, "small")
        d.text(x + 140, 98, "half of the", "small soft")
        d.text(x + 140, 114, "features", "small soft")
        d.arrow((x + 60, 140), (x + 60, 162))
        for half in range(2):
            mine = half == rank
            d.box(x + half * 66, 166, 64, 46, (kind if mine else "n"), "", "small")
            if mine:
                d.text(x + half * 66 + 32, 186, "its", "small", "middle")
                d.text(x + half * 66 + 32, 202, "columns", "small", "middle")
        d.text(x + 140, 186, "of down", "small soft")
        d.arrow((x + 60, 216), (x + 60, 238))
        d.box(x, 242, 215, 26, kind, "a partial sum of every element of y", "small")
        d.arrow((x + 107, 270), (x + 107, 292))
    d.box(10, 296, 450, 28, "c", "all-reduce: both parts added, and both ranks have y", "strong")
    return d.svg()
