"""Diagrams of Week 5: times of a request, a draft from an earlier occurrence."""

from ._svg import Drawing


def request_times() -> str:
    """Arrival, first and last token of a request, relative to the engine's steps."""
    d = Drawing(600, 176)
    left, width = 40, 76
    steps = [left + number * width for number in range(7)]
    kinds = ["n", "n", "a", "b", "b", "b", "n"]
    labels = ["others", "others", "prompt", "decode", "decode", "decode", "others"]
    d.text(left, 16, "the engine's steps", "strong")
    for x, kind, label in zip(steps, kinds, labels, strict=True):
        d.box(x, 26, width - 4, 28, kind, label, "small")
    arrival, first, last = steps[0] + 44, steps[3] - 4, steps[6] - 4
    for x, label in ((arrival, "due"), (first, "first token"), (last, "last token")):
        d.line((x, 58), (x, 84))
        d.text(x, 98, label, "small", "middle")
    d.line((steps[2], 58), (steps[2], 84), style="dashed")
    d.text(steps[2], 98, "starts", "small soft", "middle")
    for x in (steps[4] - 4, steps[5] - 4):
        d.line((x, 58), (x, 66))
    d.arrow((arrival, 116), (first, 116))
    d.arrow((first, 116), (arrival, 116))
    d.text((arrival + first) / 2, 136, "TTFT: queue and prompt", "small strong", "middle")
    d.arrow((first, 116), (last, 116))
    d.arrow((last, 116), (first, 116))
    d.text((first + last) / 2, 136, "4 tokens, 3 gaps", "small strong", "middle")
    d.text((first + last) / 2, 152, "TPOT: their mean", "small strong", "middle")
    d.text(
        left, 172, "A request that becomes due during a step waits at least for its end.", "small"
    )
    return d.svg()


def ngram_draft() -> str:
    """The last tokens of a text, their earlier occurrence, and the tokens after it."""
    d = Drawing(620, 168)
    text = ["the", "cat", "sat", "on", "the", "mat", ".", "A", "cat", "sat", "on"]
    width = 42
    d.text(10, 16, "prompt and output so far", "strong")

    def left(position: int) -> float:
        return 10 + position * width

    for position, token in enumerate(text):
        kind = "a" if position in (1, 2, 3, 8, 9, 10) else "b" if position in (4, 5, 6) else "n"
        d.box(left(position), 26, width - 4, 28, kind, token, "small")
    for position, token in enumerate(("the", "mat", ".")):
        d.box(left(11 + position), 26, width - 4, 28, "b", token, "small")
    d.arrow((left(9) + 19, 58), (left(9) + 19, 80), (left(2) + 19, 80), (left(2) + 19, 58))
    d.text((left(9) + left(5)) / 2 + 19, 96, "occurred before", "small", "middle")
    d.arrow((left(5) + 19, 58), (left(5) + 19, 116), (left(12) + 19, 116), (left(12) + 19, 58))
    d.text((left(12) + left(5)) / 2 + 19, 132, "draft: what followed", "small", "middle")
    d.text(10, 160, "One step of the target then verifies the three draft tokens.", "small soft")
    return d.svg()
