"""Diagrams of days 6.3 and 6.6: a row of 8-bit pages, a chain of page keys."""

from ._svg import Drawing


def int8_row() -> str:
    """A row in bfloat16 and in int8 with its scale; a page of rows."""
    d = Drawing(470, 236)
    d.text(10, 16, "a row in bfloat16", "strong")
    for i in range(8):
        d.box(10 + i * 56, 26, 54, 26, "n", f"x{'₀₁₂₃₄₅₆₇'[i]}", "small")
    d.text(10, 70, "D numbers of two bytes; here, D = 8", "small soft")
    d.text(10, 100, "the same row in int8", "strong")
    for i in range(8):
        d.box(10 + i * 28, 110, 26, 26, "a", f"q{'₀₁₂₃₄₅₆₇'[i]}", "small")
    d.box(234, 110, 110, 26, "c", "scale, float32", "small")
    d.text(10, 154, "D numbers of one byte", "small soft")
    d.text(234, 154, "four bytes", "small soft")
    d.text(10, 184, "a page: a row for each head and token", "strong")
    for head in range(2):
        for token in range(3):
            x, y = 10 + token * 152, 194 + head * 20
            d.box(x, y, 106, 16, "a")
            d.box(x + 106, y, 36, 16, "c")
    return d.svg()


def key_chain() -> str:
    """Keys of the pages of two prompts with a common prefix."""
    d = Drawing(470, 250)
    d.box(10, 96, 96, 40, "e", "fingerprint\nof the model", "small")

    def page(x: float, y: float, kind: str, tokens: str, key: str) -> None:
        d.box(x, y, 140, 26, kind, tokens, "small mono")
        d.box(x, y + 30, 140, 22, "n", f"key {key}", "small")

    page(150, 92, "a", "You are a helpful", "3fa1…")
    page(320, 22, "b", "What is RoPE?", "c07e…")
    page(320, 162, "c", "Who are you?", "91d2…")
    d.arrow((108, 132), (146, 132))
    d.arrow((292, 130), (316, 66))
    d.arrow((292, 136), (316, 202))
    d.text(150, 168, "hash(fingerprint,", "small soft")
    d.text(150, 184, "tokens of the page)", "small soft")
    d.text(320, 96, "hash(3fa1…, tokens)", "small soft")
    d.text(320, 238, "hash(3fa1…, tokens)", "small soft")
    return d.svg()
