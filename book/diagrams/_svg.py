"""SVG builder: boxes, lines, arrows, text."""

import html


class Drawing:
    """Collects shapes and becomes an SVG.

    Args:
        width, height: of the drawing.
    """

    def __init__(self, width: float, height: float):
        self.width = width
        self.height = height
        self._parts: list[str] = []

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str = "n",
        label: str = "",
        style: str = "",
        radius: float = 3,
    ) -> None:
        """A rectangle with a centered label of one or more lines."""
        self._parts.append(
            f'<rect class="box {kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" '
            f'rx="{radius:g}"/>'
        )
        lines = label.split("\n") if label else []
        for i, line in enumerate(lines):
            middle = y + height / 2 + 4.5 + (i - (len(lines) - 1) / 2) * 15
            self.text(x + width / 2, middle, line, style=style, anchor="middle")

    def text(self, x: float, y: float, text: str, style: str = "", anchor: str = "start") -> None:
        """One line; `style` is any of small, soft, strong, mono."""
        self._parts.append(
            f'<text class="{style}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">'
            f"{html.escape(text)}</text>"
        )

    def line(self, *points: tuple[float, float], style: str = "") -> None:
        """A line through the points; `style` may be dashed or curve."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        kind = "curve" if style == "curve" else f"line {style}"
        self._parts.append(f'<polyline class="{kind}" points="{path}"/>')

    def arrow(self, *points: tuple[float, float], style: str = "") -> None:
        """A line with an arrowhead at its last point."""
        self.line(*points, style=style)
        (x0, y0), (x, y) = points[-2:]
        length = ((x - x0) ** 2 + (y - y0) ** 2) ** 0.5 or 1
        ux, uy = (x - x0) / length, (y - y0) / length
        left = (x - 8 * ux + 4 * uy, y - 8 * uy - 4 * ux)
        right = (x - 8 * ux - 4 * uy, y - 8 * uy + 4 * ux)
        path = " ".join(f"{px:g},{py:g}" for px, py in ((x, y), left, right))
        self._parts.append(f'<polygon class="head" points="{path}"/>')

    def dot(self, x: float, y: float, radius: float = 3.5) -> None:
        """A filled circle."""
        self._parts.append(f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def circle(self, x: float, y: float, radius: float, style: str = "") -> None:
        """An empty circle."""
        self._parts.append(f'<circle class="line {style}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def svg(self) -> str:
        """The complete SVG document."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" '
            f'viewBox="0 0 {self.width:g} {self.height:g}">' + "".join(self._parts) + "</svg>"
        )
