"""Diagrams of Week 5: forced tokens, and a stream cut into chunks."""

from ._svg import Drawing

# Steps of a JSON output: forced tokens, then the sampled one.
STEPS = [
    ["{"],
    ['"'],
    ["c", "ity", '"', ":"],
    [' "'],
    ["T"],
    ["okyo"],
    ['"'],
    [","],
    [' "'],
    ["c", "ount", "ry", '"', ":"],
]


def forced_tokens() -> str:
    """Tokens of an output, grouped by step; forced tokens have another color."""
    d = Drawing(562, 118)
    x = 8.0
    for number, step in enumerate(STEPS, start=1):
        left = x
        for place, token in enumerate(step):
            width = 16 + 7 * len(token)
            kind = "a" if place == len(step) - 1 else "c"
            d.box(x, 24, width, 28, kind, token.replace(" ", "␣"), "mono small")
            x += width + 2
        d.line((left, 58), (left, 64), (x - 2, 64), (x - 2, 58))
        d.text((left + x - 2) / 2, 80, f"{number}", "small", "middle")
        x += 5
    d.text(8, 15, "tokens", "small soft")
    d.text(8, 108, "steps", "small soft")
    d.box(180, 96, 16, 14, "a")
    d.text(202, 107, "sampled by the model", "small")
    d.box(340, 96, 16, 14, "c")
    d.text(362, 107, "forced by the grammar, verified", "small")
    return d.svg()


# Chunk, text that the parser then holds back, and emitted deltas.
STREAM = [
    ("<th", "<th", []),
    ("ink>\\nHm.\\n</", "\\n</", [("b", "reasoning: Hm.")]),
    ("think>\\n\\nWell <t", " <t", [("a", "content: Well")]),
    ("ee>. <tool", " <tool", [("a", "content:  <tee>.")]),
    ('_call>\\n{"name": "add"', ' <tool_call>\\n{"name": "add"', []),
    (', "arguments": {"a": 1', "", [("c", "call: add"), ("c", 'arguments: {"a": 1')]),
    ("7}}\\n</tool_call>", "", [("c", "arguments: 7}")]),
]


def held_back() -> str:
    """Chunks of a stream, each with the text held back and the deltas sent."""
    d = Drawing(620, 268)
    columns = (8, 196, 404)
    for column, title in zip(columns, ("chunk", "held back", "sent"), strict=True):
        d.text(column, 16, title, "small soft")
    y = 26.0
    for chunk, waiting, deltas in STREAM:
        d.box(columns[0], y, 176, 26, "n", chunk.replace(" ", "␣"), "mono small")
        if waiting:
            width = 14 + 6.7 * len(waiting)
            d.box(columns[1], y, width, 26, "d", waiting.replace(" ", "␣"), "mono small")
        x: float = columns[2]
        for kind, label in deltas:
            width = 14 + 6.2 * len(label)
            d.box(x, y, width, 26, kind, label.replace(":  ", ": ␣"), "small")
            x += width + 4
        y += 34
    return d.svg()
