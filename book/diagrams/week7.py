"""Diagrams of Week 7: the messages of an agent, and the length of its prompt over a run."""

from ._svg import Drawing


def agent_loop() -> str:
    """A run as a list of messages; steps are bracketed."""
    d = Drawing(560, 262)
    rows = [
        ("user", "e", "What is 4718 + 2593, and what is in a.txt?"),
        ("assistant", "a", 'add({"a": 4718, "b": 2593}), read_file({"path": 3})'),
        ("tool", "b", "7311"),
        ("tool", "c", "error: invalid arguments of read_file: $.path: …"),
        ("assistant", "a", 'read_file({"path": "a.txt"})'),
        ("tool", "b", "one two"),
        ("assistant", "d", "The sum is 7311, and a.txt has two words."),
    ]
    for index, (role, kind, text) in enumerate(rows):
        y = 6 + index * 36
        d.text(84, y + 19, role, "small strong", "end")
        d.box(94, y, 360, 28, kind)
        d.text(104, y + 19, text, "small")
    for first, last, label in ((1, 3, "step 1"), (4, 5, "step 2"), (6, 6, "step 3")):
        top, bottom = 6 + first * 36, 34 + last * 36
        d.line((460, top), (468, top), (468, bottom), (460, bottom))
        d.text(476, (top + bottom) / 2 + 4, label, "small")
    d.text(516, 240, "answer", "small soft")
    return d.svg()


def compaction() -> str:
    """The prompt's length under two policies: sawtooth curves with small and large steps."""
    d = Drawing(600, 236)
    for x0, name, target in ((44, "at every turn", 148), (332, "rare, large steps", 76)):
        base, limit, head = 200, 150, 24
        right = x0 + 244
        d.text(x0 + 122, 16, name, "strong", "middle")
        d.box(x0, base - head, 244, head, "e", "head", "small")
        length, points = 40.0, [(float(x0), base - 40.0)]
        for turn in range(1, 31):
            x = x0 + turn * 8
            points.append((x, points[-1][1]))
            length += 9
            if length > limit:
                points.append((x, base - limit))
                length = target - 9 if target > 100 else target
            points.append((x, base - length))
        d.line((x0, base - limit), (right, base - limit), style="dashed")
        d.line(*points)
        d.line((x0, 30), (x0, base), (right, base))
        d.text(x0 + 6, base - limit - 6, "limit", "small soft")
        if target < 100:
            d.line((x0, base - target), (right, base - target), style="dashed")
            d.text(right, base - target + 14, "target", "small soft", "end")
        d.text(right, base + 18, "turns", "small soft", "end")
    d.text(8, 24, "prompt", "small soft")
    return d.svg()
