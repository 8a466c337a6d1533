"""Import diagram: a band per layer, a box per component, an arrow per import.

Transitive imports are omitted: if a imports b, and b imports c, no arrow goes from a to c.
"""

from collections.abc import Mapping

from .rules import LAYER, LAYERS, reachable

COLUMN = {
    component: column for components in LAYERS.values() for component, column in components.items()
}
# Column in which an arrow crosses the layers between its ends, chosen to avoid those layers' boxes.
EDGE_COLUMN = {("models", "demo"): 10.3, ("generate", "sampler"): 2.62}

WIDTH = 960
LEFT, COLUMN_WIDTH = 200, 71  # x of column 0, width of a column
TOP, LAYER_HEIGHT, BOX_HEIGHT, GAP = 20, 68, 30, 6
STYLE = """
  text { font: 13px "Helvetica Neue", Arial, "Liberation Sans", sans-serif; fill: #16202e; }
  .layer { font-size: 12px; fill: #5d6b7e; }
  .paper { fill: #ffffff; }
  .band { fill: #f3f5f9; }
  .component { fill: #ffffff; stroke: #47607f; }
  .folder { fill: #dbe9fb; }
  .import { fill: none; stroke: #47607f; stroke-width: 1.2; }
  .head { fill: #47607f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf5; }
    .layer { fill: #a0aec0; }
    .paper { fill: #0e141b; }
    .band { fill: #172029; }
    .component { fill: #0e141b; stroke: #93a9c4; }
    .folder { fill: #1f4063; }
    .import { stroke: #93a9c4; }
    .head { fill: #93a9c4; }
  }
"""


def draw(components: Mapping[str, set[str]], folders: set[str]) -> str:
    """Draws a deterministic SVG; components in `folders` are packages."""
    height = 2 * TOP + (len(LAYERS) - 1) * LAYER_HEIGHT + BOX_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="Imports between the components '
        'of tiny-llm: layers from the commands down to the errors; all arrows point down.">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
    ]
    for number, layer in enumerate(LAYERS):
        y = _top(number)
        parts.append(
            f'<rect class="band" x="12" y="{y - GAP}" width="{WIDTH - 24}" '
            f'height="{BOX_HEIGHT + 2 * GAP}" rx="6"/>'
        )
        parts.append(f'<text class="layer" x="24" y="{y + BOX_HEIGHT / 2 + 4:g}">{layer}</text>')
    for component, others in components.items():
        for other in sorted(_direct(component, others, components)):
            parts += _arrow(component, other, components)
    for number, layer_components in enumerate(LAYERS.values()):
        for component in layer_components:
            kind = "component folder" if component in folders else "component"
            half = _half_width(component)
            parts.append(
                f'<rect class="{kind}" x="{_x(COLUMN[component]) - half:g}" y="{_top(number)}" '
                f'width="{2 * half:g}" height="{BOX_HEIGHT}" rx="5"/>'
            )
            name = f"{component}/" if component in folders else component
            parts.append(
                f'<text x="{_x(COLUMN[component]):g}" y="{_top(number) + BOX_HEIGHT / 2 + 4.5:g}" '
                f'text-anchor="middle">{name}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def _direct(component: str, others: set[str], components: Mapping[str, set[str]]) -> set[str]:
    """Imports of a component, except those that are also transitive imports."""
    implied = {indirect for other in others for indirect in reachable(other, components) - {other}}
    return others - implied


def _arrow(component: str, other: str, components: Mapping[str, set[str]]) -> list[str]:
    """Arrow from the lower edge of a box to the upper edge of a box in a lower layer."""
    start_y = _top(LAYER[component]) + BOX_HEIGHT
    end_y = _top(LAYER[other]) - 1
    start_x = _port(
        component, sorted(_direct(component, components[component], components), key=_column), other
    )
    above = [
        importer
        for importer in components
        if other in _direct(importer, components[importer], components)
    ]
    end_x = _port(other, sorted(above, key=_column), component)
    bend = LAYER_HEIGHT - BOX_HEIGHT
    if (component, other) in EDGE_COLUMN:
        lane = _x(EDGE_COLUMN[component, other])
        path = (
            f"M{start_x:g},{start_y} C{start_x:g},{start_y + bend} {lane:g},{start_y + 4} "
            f"{lane:g},{start_y + bend + 24} L{lane:g},{end_y - bend - 8} "
            f"C{lane:g},{end_y - 8} {end_x:g},{end_y - bend} {end_x:g},{end_y - 5}"
        )
    else:
        reach = (end_y - start_y) * 0.5
        path = (
            f"M{start_x:g},{start_y} C{start_x:g},{start_y + reach:g} "
            f"{end_x:g},{end_y - 5 - reach:g} {end_x:g},{end_y - 5}"
        )
    head = f"M{end_x - 4:g},{end_y - 7} L{end_x + 4:g},{end_y - 7} L{end_x:g},{end_y} Z"
    return [f'<path class="import" d="{path}"/>', f'<path class="head" d="{head}"/>']


def _port(component: str, neighbors: list[str], neighbor: str) -> float:
    """x of an arrow's end on the edge of `component`; ends are spaced in the neighbors' order."""
    space = min(14.0, (2 * _half_width(component) - 16) / max(1, len(neighbors) - 1))
    return _x(COLUMN[component]) + (neighbors.index(neighbor) - (len(neighbors) - 1) / 2) * space


def _column(component: str) -> float:
    return COLUMN[component]


def _top(number: int) -> int:
    """y of the upper edge of a layer's boxes; layer 0 is the lowest."""
    return TOP + (len(LAYERS) - 1 - number) * LAYER_HEIGHT


def _x(column: float) -> float:
    return LEFT + column * COLUMN_WIDTH


def _half_width(component: str) -> float:
    """Half the width of a box: about seven SVG units per letter plus a margin."""
    return 3.5 * len(component) + 14
