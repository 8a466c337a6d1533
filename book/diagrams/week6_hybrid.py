"""Diagrams of the optional days on hybrid models: the delta rule, checkpoints of a turn."""

from ._svg import Drawing


def delta_step() -> str:
    """One token: the state is decayed, compared, corrected and read."""
    d = Drawing(560, 250)
    boxes = [
        (10, "a", "decay", "γ S"),
        (150, "b", "compare", "δ = β (v − Sᵀk)"),
        (290, "c", "correct", "S + k δᵀ"),
        (430, "e", "read", "o = Sᵀq"),
    ]
    for number, (x, kind, title, formula) in enumerate(boxes):
        d.text(x + 60, 58, title, "strong", "middle")
        d.box(x, 68, 120, 44, kind, formula, "small")
        if number:
            d.arrow((x - 20, 90), (x - 2, 90))
    d.text(70, 16, "S of the last token", "small", "middle")
    d.arrow((70, 22), (70, 42))
    d.text(350, 16, "S for the next token", "small", "middle")
    d.arrow((350, 42), (350, 22))
    for x, label in ((70, "γ"), (190, "k, v"), (232, "β"), (350, "k"), (490, "q")):
        d.arrow((x, 138), (x, 116))
        d.text(x, 152, label, "small mono", "middle")
    d.line((10, 166), (550, 166), style="dashed")
    d.text(
        10, 186, "q, k and v: W_qkv x, mixed with the last three tokens by the convolution", "small"
    )
    d.text(10, 206, "γ and β: two numbers per value head, from W_a x and W_b x", "small")
    d.text(
        10,
        232,
        "S has D_k rows and D_v columns, after one token and after a million.",
        "small soft",
    )
    return d.svg()


def checkpoints() -> str:
    """The pages of two turns, and the states saved by the first."""
    d = Drawing(600, 262)
    width, height = 80, 30

    def page(x: float, y: float, kind: str, label: str, has_state: bool = False) -> None:
        d.box(x, y, width, height, kind, label, "small")
        if has_state:
            d.dot(x + width, y + height / 2, 5)

    d.text(10, 16, "turn 1: its prompt, and its answer", "strong")
    row = [("a", "system"), ("a", "system"), ("b", "question 1"), ("b", "<think>")]
    row += [("n", "thinking"), ("n", "answer 1")]
    for i, (kind, label) in enumerate(row):
        page(10 + i * (width + 8), 28, kind, label, i in (2, 3, 5))
    d.text(10, 84, "● a page whose end has a checkpoint", "small soft")
    d.text(10, 118, "turn 2: the template has dropped the thinking", "strong")
    row = [("a", "system"), ("a", "system"), ("b", "question 1"), ("c", "answer 1")]
    row += [("d", "question 2"), ("d", "<think>")]
    for i, (kind, label) in enumerate(row):
        page(10 + i * (width + 8), 130, kind, label, i == 2)
    end = 10 + 3 * (width + 8) - 4
    d.line((10, 170), (10, 178), (end - 6, 178), (end - 6, 170))
    d.text((10 + end) / 2, 196, "pages and a state: a hit", "small", "middle")
    d.line((end + 6, 170), (end + 6, 178), (10 + 6 * (width + 8) - 8, 178))
    d.text(end + 120, 196, "computed", "small", "middle")
    d.text(
        10,
        226,
        "The states at the end of the prompt and of the answer are of no use here:",
        "small",
    )
    d.text(
        10,
        244,
        "they have seen tokens that turn 2 does not have. The one before them has not.",
        "small",
    )
    return d.svg()
