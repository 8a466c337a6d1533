"""Which part of the package may import which.

The package is a house. A *room* is an entry of its folder: a file, or a folder of files. Every room
is on a floor, and an import goes from a room to one on a floor below. Inside a room, files import
each other without a circle.
"""

import graphlib
import sys
from collections.abc import Mapping
from pathlib import Path

from .imports import Module

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tiny_llm"

# From the bottom to the top: what a floor is for, its rooms, and the columns in which the picture
# has them. A room that is not here fails the check: whoever adds one decides where it belongs.
FLOORS: dict[str, dict[str, float]] = {
    "errors, shipped models": {"demo": 0.72, "errors": 8.2},
    "arithmetic": {"basics": 5.4, "kernels": 8.2},
    "layers": {
        "layer_norm": 0.72,
        "positional_encoding": 2.68,
        "embedding": 4.6,
        "quantize": 6.05,
        "attention": 8.2,
        "sampler": 9.9,
    },
    "keys and values": {"kv_cache": 8.2},
    "models of Weeks 1 and 2": {"qwen3_week1": 2.4, "qwen3_week2": 5.2},
    "Week 3": {"qwen3_week3": 5.2, "paged_kv_cache": 8.2},
    "checkpoints": {"models": 4.0},
    "one answer": {"generate": 5.6},
    "many requests": {"batch": 4.6, "engine": 6.6},
    "many clients": {"server": 6.6},
    "commands": {"cli": 5.6},
}
FLOOR = {room: number for number, rooms in enumerate(FLOORS.values()) for room in rooms}

# The package's own __init__ lists everything, and finds the engine's names when they are used.
FRONT_DOOR = {"", "__main__"}

# The mathematics of Week 1 can be read with nothing but MLX at hand.
MLX_ONLY = {
    "basics",
    "attention.dense",
    "positional_encoding",
    "layer_norm",
    "embedding",
    "quantize",
    "qwen3_week1",
    "sampler",
}
MLX_ONLY_LIBRARY = {"math", "typing", "collections", "dataclasses", "functools", "types", "mlx"}

# Which tokens are computed next, and in which pages, is decided without any array.
WITHOUT_ARRAYS = {
    f"engine.{name}"
    for name in (
        "checks",
        "sampling_params",
        "config",
        "request",
        "page_allocator",
        "prefix_cache",
        "snapshot",
        "page_manager",
        "events",
        "step",
        "scheduler",
        "stop_strings",
        "answer",
        "text_length",
        "prompt_forms",
        "chat_messages",
        "structured_outputs",
        "closed_schema",
        "answer_grammar",
        "forced_tokens",
        "repetition",
        "outputs",
    )
}

STANDARD_LIBRARY = set(sys.stdlib_module_names)


def problems(modules: Mapping[str, Module]) -> list[str]:
    """What breaks a rule, a sentence each; none in a house that is in order."""
    inside = [module for name, module in modules.items() if name not in FRONT_DOOR]
    found = [sentence for module in inside for sentence in _problems_of(module)]
    found += _problems_of_week_1(modules)
    circle = find_circle({module.name: module.own for module in inside})
    if circle:
        found.append(f"these files import each other in a circle: {' → '.join(circle)}.")
    for room in FLOOR.keys() - {module.room for module in inside}:
        found.append(f"{room} has a floor in FLOORS, and is not in the package.")
    return sorted(found)


def _problems_of(module: Module) -> list[str]:
    name, room = module.name, module.room
    found = []
    if room not in FLOOR:
        return [f"{room} has no floor yet; give it one in FLOORS."]
    for other in sorted(module.own):
        there = other.partition(".")[0]
        if there != room and FLOOR.get(there, -1) >= FLOOR[room]:
            found.append(f"{name} imports {other}, which is not on a floor below it.")
    if module.stars:
        found.append(f"{name} has an `import *`; name what it needs.")
    if module.finder:
        found.append(f"{name} has a __getattr__ of its own, which hides what it imports.")
    for function in sorted(module.hidden):
        found.append(f"{name} uses {function}, which hides what it imports.")
    if "tiny_llm" in module.foreign:
        found.append(f"{name} imports tiny_llm by name; inside the package imports are relative.")
    if "tiny_llm_ext" in module.foreign and name != "kernels":
        found.append(f"{name} imports the extension, which only kernels does.")
    if name in MLX_ONLY:
        others = module.foreign - MLX_ONLY_LIBRARY
        if others:
            found.append(f"{name} imports {_listed(others)}; the mathematics needs MLX alone.")
    if name in WITHOUT_ARRAYS:
        others = (module.foreign - STANDARD_LIBRARY) | (module.own - WITHOUT_ARRAYS - {"errors"})
        if others:
            found.append(f"{name} imports {_listed(others)}; the scheduler is plain Python.")
    return found


def _problems_of_week_1(modules: Mapping[str, Module]) -> list[str]:
    """Week 1 runs where MLX is installed and nothing else: kernels imports its extension later."""
    found = []
    for name in sorted(reachable("qwen3_week1", modules)):
        others = modules[name].foreign - STANDARD_LIBRARY - {"mlx", "tiny_llm_ext"}
        if others:
            found.append(f"{name}, which Week 1 imports, imports {_listed(others)}.")
    return found


def reachable(start: str, modules: Mapping[str, Module]) -> set[str]:
    """A module and all that it imports, directly or not; none if there is no such module."""
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in found and name in modules:
            found.add(name)
            todo += modules[name].own
    return found


def find_circle(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """A circle of names, the first of them again at the end; an empty list if there is none."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))  # it lists who is imported before who imports
    return []


def room_imports(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Which room imports which others."""
    rooms: dict[str, set[str]] = {room: set() for room in FLOOR}
    for module in modules.values():
        if module.name not in FRONT_DOOR:
            others = {other.partition(".")[0] for other in module.own}
            rooms.setdefault(module.room, set()).update(others - {module.room})
    return rooms


def reachable_rooms(start: str, rooms: Mapping[str, set[str]]) -> set[str]:
    """A room and all that it imports, directly or not."""
    found: set[str] = set()
    todo = [start]
    while todo:
        room = todo.pop()
        if room not in found:
            found.add(room)
            todo += rooms[room]
    return found


def _listed(names: set[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names))
