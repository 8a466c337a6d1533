"""The picture of the house: a band for each floor, a box for each room, an arrow for each import.

An import that follows from others is left out: if a imports b, and b imports c, there is no arrow
from a to c. Where the boxes stand is chosen by hand, in `FLOORS`; the rest is computed.
"""

from collections.abc import Mapping

from .rules import FLOOR, FLOORS, reachable_rooms

COLUMN = {room: column for rooms in FLOORS.values() for room, column in rooms.items()}
# Arrows that pass other floors on their way: the column in which they do.
LANE = {("models", "demo"): -0.2, ("generate", "sampler"): 9.9}

WIDTH = 960
LEFT, COLUMN_WIDTH = 200, 71  # where column 0 is, and how wide a column is
TOP, FLOOR_HEIGHT, BOX_HEIGHT, GAP = 20, 68, 30, 6
STYLE = """
  text { font: 13px "Helvetica Neue", Arial, "Liberation Sans", sans-serif; fill: #16202e; }
  .floor { font-size: 12px; fill: #5d6b7e; }
  .paper { fill: #ffffff; }
  .band { fill: #f3f5f9; }
  .room { fill: #ffffff; stroke: #47607f; }
  .folder { fill: #dbe9fb; }
  .import { fill: none; stroke: #47607f; stroke-width: 1.2; }
  .head { fill: #47607f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf5; }
    .floor { fill: #a0aec0; }
    .paper { fill: #0e141b; }
    .band { fill: #172029; }
    .room { fill: #0e141b; stroke: #93a9c4; }
    .folder { fill: #1f4063; }
    .import { stroke: #93a9c4; }
    .head { fill: #93a9c4; }
  }
"""


def draw(rooms: Mapping[str, set[str]], folders: set[str]) -> str:
    """The picture as SVG; the same for the same rooms and imports.

    Args:
        rooms: which room imports which others.
        folders: those that are folders of files.
    """
    height = 2 * TOP + (len(FLOORS) - 1) * FLOOR_HEIGHT + BOX_HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img" aria-label="Which part of tiny-llm imports '
        'which: floors from the commands down to the errors, with every arrow going down.">',
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
    ]
    for number, floor in enumerate(FLOORS):
        y = _top(number)
        parts.append(
            f'<rect class="band" x="12" y="{y - GAP}" width="{WIDTH - 24}" '
            f'height="{BOX_HEIGHT + 2 * GAP}" rx="6"/>'
        )
        parts.append(f'<text class="floor" x="24" y="{y + BOX_HEIGHT / 2 + 4:g}">{floor}</text>')
    for room, others in rooms.items():
        for other in sorted(_direct(room, others, rooms)):
            parts += _arrow(room, other, rooms)
    for number, floor_rooms in enumerate(FLOORS.values()):
        for room in floor_rooms:
            kind = "room folder" if room in folders else "room"
            half = _half_width(room)
            parts.append(
                f'<rect class="{kind}" x="{_x(COLUMN[room]) - half:g}" y="{_top(number)}" '
                f'width="{2 * half:g}" height="{BOX_HEIGHT}" rx="5"/>'
            )
            name = f"{room}/" if room in folders else room
            parts.append(
                f'<text x="{_x(COLUMN[room]):g}" y="{_top(number) + BOX_HEIGHT / 2 + 4.5:g}" '
                f'text-anchor="middle">{name}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


def _direct(room: str, others: set[str], rooms: Mapping[str, set[str]]) -> set[str]:
    """The imports of a room that do not follow from its others."""
    implied = {far for other in others for far in reachable_rooms(other, rooms) - {other}}
    return others - implied


def _arrow(room: str, other: str, rooms: Mapping[str, set[str]]) -> list[str]:
    """From the lower edge of a box to the upper edge of one further down."""
    start_y = _top(FLOOR[room]) + BOX_HEIGHT
    end_y = _top(FLOOR[other]) - 1
    start_x = _port(room, sorted(_direct(room, rooms[room], rooms), key=_column), other)
    above = [each for each in rooms if other in _direct(each, rooms[each], rooms)]
    end_x = _port(other, sorted(above, key=_column), room)
    bend = FLOOR_HEIGHT - BOX_HEIGHT
    if (room, other) in LANE:
        lane = _x(LANE[room, other])
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


def _port(room: str, neighbours: list[str], neighbour: str) -> float:
    """Where on a box's edge the arrow to or from a neighbour is: side by side, as they stand."""
    space = min(14.0, (2 * _half_width(room) - 16) / max(1, len(neighbours) - 1))
    return _x(COLUMN[room]) + (neighbours.index(neighbour) - (len(neighbours) - 1) / 2) * space


def _column(room: str) -> float:
    return COLUMN[room]


def _top(number: int) -> int:
    """Of the boxes of a floor, counted from the ground."""
    return TOP + (len(FLOORS) - 1 - number) * FLOOR_HEIGHT


def _x(column: float) -> float:
    return LEFT + column * COLUMN_WIDTH


def _half_width(room: str) -> float:
    """Of a box: about seven units a letter, and a margin."""
    return 3.5 * len(room) + 14
