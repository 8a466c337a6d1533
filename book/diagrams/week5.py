"""Diagrams of the server's days: two threads, a disconnect, the buffers of a response."""

from ._svg import Drawing


def server_threads() -> str:
    """Path of a request through the event loop and the engine thread."""
    d = Drawing(470, 292)
    width, inner = 192, 168
    left, right = 10, 268
    for x, label in ((left, "event loop"), (right, "engine thread")):
        d.box(x, 26, width, 256, "n")
        d.text(x, 16, label, "strong")
    own, engine = left + 12, right + 10
    for y, kind, label in (
        (40, "a", "parse, validate, render"),
        (88, "a", "ServedModel.submit"),
        (136, "c", "send events"),
        (184, "c", "one queue per request"),
        (240, "e", "sockets"),
    ):
        d.box(own, y, inner, 30, kind, label, "small")
    for y, label in (
        (88, "add or abort requests"),
        (136, "step: schedule, run"),
        (184, "report the outputs"),
    ):
        d.box(engine, y, inner, 30, "b", label, "small")
        if y > 88:
            d.arrow((engine + inner / 2, y - 18), (engine + inner / 2, y - 2))
    d.arrow((own + inner / 2, 70), (own + inner / 2, 86))
    d.arrow((own + inner / 2, 184), (own + inner / 2, 168))
    d.line((own, 151), (own - 6, 151), (own - 6, 255))
    d.arrow((own - 6, 255), (own, 255))
    d.arrow((own + inner, 103), (engine - 1, 103))
    d.text(235, 96, "commands", "small", "middle")
    d.arrow((engine, 199), (own + inner + 1, 199))
    d.text(235, 192, "reports", "small", "middle")
    d.line((engine + inner, 199), (engine + inner + 7, 199), (engine + inner + 7, 62))
    d.line((engine + inner + 7, 62), (engine + inner / 2, 62))
    d.arrow((engine + inner / 2, 62), (engine + inner / 2, 86))
    d.text(engine, 50, "until shutdown", "small soft")
    d.text(engine, 250, "owns the model, the pages", "small soft")
    d.text(engine, 266, "and the scheduler", "small soft")
    return d.svg()


def disconnect() -> str:
    """Steps of the engine while a client disconnects and its request is aborted."""
    d = Drawing(470, 252)
    left, width = 86, 74
    d.text(10, 40, "client", "strong")
    d.text(10, 104, "event loop", "strong")
    d.text(10, 190, "engine", "strong")
    for number in range(5):
        x = left + number * (width + 2)
        has_both = number < 3
        d.box(x, 160, width, 22, "a", f"step {5 + number}", "small strong")
        d.box(x, 184, width, 22, "b" if has_both else "n", "request" if has_both else "", "small")
        if number < 2:
            end = x + width
            d.arrow((end, 158), (end, 116), (end + 10, 48))
            d.text(end - 2, 100, "token", "small", "end")
    hangs_up = left + 2 * (width + 2) + 24
    d.text(hangs_up, 26, "hangs up", "small", "middle")
    d.circle(hangs_up, 38, 5)
    d.arrow((hangs_up, 44), (hangs_up, 88))
    d.text(hangs_up + 6, 72, "http.disconnect", "small")
    d.box(hangs_up - 18, 90, 110, 22, "c", "cancel, abort", "small")
    third = left + 3 * (width + 2)
    d.arrow((hangs_up + 48, 112), (third - 1, 158))
    d.text(third + 18, 140, "AbortRequest", "small")
    d.text(left, 230, "Between steps 7 and 8 the engine thread reads its queue:", "small soft")
    d.text(left, 246, "the pages are free, and the place in the batch.", "small soft")
    return d.svg()


def response_buffers() -> str:
    """Buffers between the engine and a client that does not read, with the bound of each."""
    d = Drawing(470, 286)
    rows = (
        ("b", "engine thread", "a step never waits for a client"),
        ("a", "reports", "emptied by the event loop at each flush"),
        ("c", "output queue", "256 outputs per completion, then merged"),
        ("d", "sender", "one write; await send(…) waits here"),
        ("e", "socket of the server", "16 KiB unsent, and what the client's kernel takes"),
        ("n", "client", "does not read"),
    )
    for number, (kind, label, bound) in enumerate(rows):
        y = 10 + number * 46
        d.box(10, y, 160, 30, kind, label, "small strong")
        d.text(186, y + 19, bound, "small")
        if number:
            d.arrow((90, y - 16), (90, y - 1))
    return d.svg()
