"""Diagrams of day 7.4: branches of a run, with their pages and files."""

from ._svg import Drawing

OWN = (("a", 1, "total.txt: 12"), ("b", 2, "total.txt: 13"), ("c", 2, "total.txt: 12"))


def branches_of_a_run() -> str:
    """Pages of a run's messages, stored once, and each branch's own pages and files."""
    d = Drawing(640, 190)
    size, gap = 40, 4
    d.text(10, 16, "pages of the run's messages", "strong")
    for page in range(5):
        d.box(10 + page * (size + gap), 84, size, 30, "n", str(page), "small")
    end = 10 + 5 * (size + gap)
    d.text(270, 16, "own pages", "strong")
    d.text(400, 16, "own seed", "strong")
    d.text(500, 16, "own workspace", "strong")
    page = 5
    for number, (kind, count, file) in enumerate(OWN):
        y = 34 + number * 50
        d.arrow((end, 99), (266, y + 15))
        for place in range(count):
            d.box(270 + place * (size + gap), y, size, 30, kind, str(page), "small")
            page += 1
        d.box(400, y, 62, 30, kind, f"seed {kind}", "small")
        d.box(500, y, 130, 30, kind, file, "small")
    return d.svg()
