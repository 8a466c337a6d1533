"""Diagrams of Week 4: interleaved runs, words in lanes, prepacked rows, panels."""

from ._svg import Drawing


def turns() -> str:
    """Two equal kernels on a machine that slows down: sequential and interleaved runs."""
    d = Drawing(470, 250)
    orders = (
        ("one after the other", "AAAABBBB", 30),
        ("in turns, every other round backwards", "ABBAABBA", 142),
    )
    for title, order, y in orders:
        d.text(10, y - 10, title, "strong")
        x = 10.0
        for number, name in enumerate(order):
            width = 38 + 4.5 * number
            d.box(x, y, width - 3, 30, "a" if name == "A" else "b", name, "strong")
            x += width
        for row, name in enumerate("AB"):
            spent = sum(38 + 4.5 * n for n, each in enumerate(order) if each == name) / 4
            d.text(10, y + 50 + 18 * row, f"{name}, mean of four", "small")
            d.box(110, y + 40 + 18 * row, 2.6 * spent, 12, "a" if name == "A" else "b")
            d.text(118 + 2.6 * spent, y + 50 + 18 * row, f"{spent:.0f}", "small mono")
    note = "Width: time of a run. Each run is slower than the previous one."
    d.text(10, 244, note, "small soft")
    return d.svg()


def lanes() -> str:
    """A vector of words: one shift extracts the same nibble of each word."""
    d = Drawing(640, 270)
    d.text(10, 18, "four words of a row: a word is eight weights", "strong")
    kinds = "abcd"
    for word in range(4):
        for k in range(8):
            number = word * 8 + k
            kind = kinds[word] if k == 1 else "n"
            d.box(10 + word * 156 + k * 18.5, 28, 17.5, 26, kind, str(number), "small", 1)
    d.text(10, 84, "loaded as one vector, shifted by 1 · 4 bits, masked:", "strong")
    for lane in range(4):
        x = 10 + lane * 156
        d.box(x, 94, 148, 28, kinds[lane], f"q{lane * 8 + 1}", "mono")
        d.text(x + 74, 138, f"lane {lane}", "small soft", "middle")
    d.text(10, 170, "multiplied by the activations with the same indices:", "strong")
    for lane in range(4):
        d.box(10 + lane * 156, 180, 148, 28, "e", f"a{lane * 8 + 1}", "mono")
    d.text(10, 230, "These are 8 apart in the row. Rearranged once, they are adjacent:", "small")
    d.text(10, 250, "permuted = a0 a8 a16 a24 · a1 a9 a17 a25 · a2 …", "small mono")
    return d.svg()


def prepacking() -> str:
    """Four rows of three words: row-major and prepacked."""
    d = Drawing(470, 236)
    kinds = "abcd"
    d.text(10, 18, "row-major: words multiplied together are a row apart", "strong")
    for row in range(4):
        for word in range(3):
            label = f"{row}.{word}"
            x = 10 + (row * 3 + word) * 37.5
            kind = kinds[row] if word == 0 else "n"
            d.box(x, 28, 35, 28, kind, label, "small mono")
    d.text(10, 92, "prepacked: the first words of all rows, then the second", "strong")
    for word in range(3):
        for row in range(4):
            x = 10 + (word * 4 + row) * 37.5
            d.box(x, 102, 35, 28, kinds[row] if word == 0 else "n", f"{row}.{word}", "small mono")
    for lane in range(4):
        d.text(27.5 + lane * 37.5, 146, f"lane {lane}", "small soft", "middle")
    d.text(10, 180, "row.word: the first four are one vector, one output per lane.", "small")
    d.text(10, 200, "All lanes need the same activation; each has its own sum.", "small")
    d.text(10, 220, "The next vector is the next 16 bytes, to the end of the matrix.", "small")
    return d.svg()


def panels() -> str:
    """A panel is unpacked once from words, and tiles of rows multiply with it."""
    d = Drawing(470, 262)
    d.text(10, 18, "words of a group", "strong")
    for line in range(3):
        for word in range(4):
            d.box(10 + word * 27, 28 + line * 20, 25, 18, "a")
    d.text(10, 112, "32 outputs, 2 kB", "small soft")
    d.arrow((124, 58), (176, 58))
    d.text(150, 48, "once", "small", "middle")
    d.text(182, 18, "panel in the L1 cache", "strong")
    d.box(182, 28, 216, 64, "b", "128 inputs × 32 outputs")
    d.text(182, 112, "float32, 16 kB", "small soft")
    d.text(10, 148, "rows of activations", "strong")
    for tile in range(3):
        y = 158 + tile * 30
        d.box(10, y, 106, 24, "e", f"tile {tile}", "small")
        d.arrow((118, y + 12), (176, y + 12))
        d.box(182, y, 216, 24, "c", "sums in registers, then totals", "small")
    d.arrow((290, 116), (290, 154))
    d.text(10, 256, "The next group is unpacked into the same panel.", "small soft")
    return d.svg()


def key_parts() -> str:
    """A sequence's keys in parts, claimed by any thread; states are merged in order."""
    d = Drawing(470, 262)
    d.text(10, 18, "keys of one head, in parts of 512 from the first on", "strong")
    x = 10.0
    threads = "abbab"
    for part, (width, thread) in enumerate(zip((98, 98, 98, 98, 68), threads, strict=True)):
        d.box(x, 28, width - 4, 30, thread, f"part {part}")
        d.arrow((x + (width - 4) / 2, 62), (x + (width - 4) / 2, 92))
        d.box(x, 96, width - 4, 30, "n", "m, l, o", "small mono")
        d.arrow((x + (width - 4) / 2, 130), (235, 172))
        x += width
    d.box(150, 176, 170, 30, "e", "merged, 0 to 4", "strong")
    d.box(10, 222, 14, 14, "a")
    d.text(30, 233, "one thread", "small")
    d.box(110, 222, 14, 14, "b")
    d.text(130, 233, "another thread; the assignment varies", "small")
    note = "The assignment changes neither the parts nor the merge order."
    d.text(10, 256, note, "small soft")
    return d.svg()
