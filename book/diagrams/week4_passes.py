"""Diagrams of days 4.5 and 4.7: claims, memory passes, buffer lifetimes."""

from ._svg import Drawing


def claims() -> str:
    """Twelve chunks on two threads, one of which temporarily loses its core."""
    d = Drawing(470, 232)
    width, late = 30, 5
    rows = {
        "equal parts": ([(0, [*range(6)])], [(0, [6]), (1 + late, [*range(7, 12)])]),
        "claims": ([(0, [*range(6), 7, 8])], [(0, [6]), (1 + late, [9, 10, 11])]),
    }
    for number, (title, threads) in enumerate(rows.items()):
        y = 30 + number * 104
        d.text(10, y - 10, title, "strong")
        for thread, pieces in enumerate(threads):
            top = y + thread * 34
            for start, chunks in pieces:
                for place, chunk in enumerate(chunks):
                    is_own = (chunk < 6) == (thread == 0)
                    kind = ("a", "b")[thread] if is_own else "d"
                    x = 10 + (start + place) * width
                    d.box(x, top, width - 2, 28, kind, str(chunk), "small")
            if len(pieces) > 1:
                d.text(10 + 3.5 * width, top + 18, "core lost", "small soft", "middle")
    note = "7 and 8 belong to the second thread's range; the first thread has claimed them."
    d.text(10, 226, note, "small soft")
    return d.svg()


def passes() -> str:
    """Memory traffic of three operations and of one fused operation."""
    d = Drawing(470, 214)
    d.text(10, 18, "separate operations: whole arrays, one after the other", "strong")
    for number, (name, arrays) in enumerate((("x + y", 3), ("mean of squares", 1), ("scale", 2))):
        y = 28 + number * 30
        d.text(10, y + 16, name, "small")
        for array in range(arrays):
            is_written = array == arrays - 1 and name != "mean of squares"
            d.box(140 + array * 108, y, 100, 22, "c" if is_written else "a")
    d.text(10, 142, "fused: a row of each array, and then the next row", "strong")
    d.text(10, 168, "all three", "small")
    for array in range(4):
        for row in range(5):
            kind = ("c" if array >= 2 else "a") if row == 1 else "n"
            d.box(140 + array * 82, 152 + row * 9, 74, 8, kind, radius=1)
    note = "read (x, y) and written (sum, norm); a row stays in the L1 cache."
    d.text(10, 210, note, "small soft")
    return d.svg()


def lifetimes() -> str:
    """Lifetimes of a captured graph's arrays, and their memory blocks."""
    d = Drawing(470, 226)
    steps = ("norm", "reshape", "norm", "swiglu")
    spans = (
        (0, -1, 0, "0", "input"),
        (1, 0, 3, "1", "block A"),
        (2, 1, 3, "2", "view of 1"),
        (3, 2, 3, "3", "block B"),
        (4, 3, 4, "4", "output"),
    )
    left, width = 64, 78
    for number, step in enumerate(steps):
        d.text(left + number * width + width / 2, 18, f"{number} {step}", "small", "middle")
    for index, begin, end, name, memory in spans:
        y = 28 + index * 34
        d.text(10, y + 18, f"array {name}", "small")
        x = left + max(begin, -0.15) * width
        kind = {"input": "n", "output": "e", "view of 1": "b"}.get(memory, "a")
        d.box(x, y, (min(end, 3) + 1) * width - (x - left) - 4, 26, kind, memory, "small")
    d.text(10, 216, "Array 1 is needed until step 3, because its view is.", "small soft")
    return d.svg()
