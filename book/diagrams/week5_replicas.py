"""Diagrams of day 5.7: the matches of a key in two indexes."""

from ._svg import Drawing

KEY = [("system", "n"), ("notes A", "a"), ("question", "a"), ("answer", "a"), ("question", "e")]
KNOWN = ([0, 1, 2, 3], [0])  # chunks of the key in each replica's index
OTHERS = (["notes C"], ["notes B", "question", "answer", "notes D"])


def prefix_match() -> str:
    """A key's chunks, and the length of its prefix match in each replica's index."""
    d = Drawing(600, 252)
    width, gap, left = 84, 8, 96

    def chunk(place: int, y: float, label: str, kind: str) -> None:
        d.box(left + place * (width + gap), y, width, 26, kind, label, "small")

    d.text(10, 33, "key", "strong")
    for place, (label, kind) in enumerate(KEY):
        chunk(place, 15, label, kind)
    for replica, known in enumerate(KNOWN):
        y = 82 + replica * 92
        d.text(10, y + 18, f"replica {replica}", "strong")
        for place in known:
            chunk(place, y, *KEY[place])
        end = left + len(known) * (width + gap) - gap
        d.line((left, y - 12), (left, y - 6), (end, y - 6), (end, y - 12))
        d.text((left + end) / 2, y - 14, f"match: {len(known)} of 5", "small", "middle")
        d.text(10, y + 50, "also knows", "small soft")
        for place, label in enumerate(OTHERS[replica]):
            chunk(place, y + 32, label, "b")
    return d.svg()
