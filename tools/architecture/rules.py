"""Import rules of `tiny_llm`.

A *component* is a top-level module or sub-package. Every component is in a layer and imports only
components of lower layers. Inside a component, neither modules nor sub-packages form a cycle.
"""

import graphlib
import sys
from collections.abc import Mapping, Set
from pathlib import Path

from .imports import Module

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "tiny_llm"

# Layers from bottom to top, with all components and their columns in the diagram: the course's on
# the left, the engine's on the right.
LAYERS: dict[str, dict[str, float]] = {
    "errors, bundled models": {"errors": 4.6, "demo": 9.6},
    "arithmetic": {"basics": 2.6, "kernels": 6.6},
    "layers": {
        "layer_norm": 0.72,
        "positional_encoding": 2.63,
        "embedding": 4.49,
        "quantize": 5.82,
        "attention": 7.17,
        "sampling_ops": 8.75,
    },
    "Week 1 | KV storage": {"qwen3_week1": 1.0, "sampler": 2.62, "kv_storage": 7.6},
    "KV caches | checkpoints": {"kv_cache": 3.5, "models": 8.4},
    "Week 2 | engine": {"qwen3_week2": 1.7, "paged_kv_cache": 4.1, "engine": 8.4},
    "Week 3 | HTTP clients": {"qwen3_week3": 1.7, "server": 8.4},
    "one prompt": {"generate": 2.4},
    "many prompts": {"batch": 2.4},
    "commands": {"cli": 5.6},
    "agents": {"agent": 6.6},
}

# Only the course's own modules and the commands may import the course.
COURSE = {
    "sampler",
    "qwen3_week1",
    "kv_cache",
    "paged_kv_cache",
    "qwen3_week2",
    "qwen3_week3",
    "generate",
    "batch",
}
ENGINE = {"kernels", "kv_storage", "models", "engine", "server"}
COMMANDS = {"cli", "agent"}


def part_of(component: str) -> str:
    """Heading in the tree: whether a component belongs to the course, the engine or both."""
    if component in COURSE:
        return "the rest of the course"
    if component in ENGINE:
        return "the engine, which imports nothing from the course: begin with engine/llm.py"
    if component in COMMANDS:
        return "programs that run both"
    return "the course's operations, which the engine uses, too: learners begin with basics.py"


LAYER = {
    component: number
    for number, components in enumerate(LAYERS.values())
    for component in components
}

# Exempt modules: __init__ re-exports names of all layers, __main__ runs the command line.
ENTRY_POINTS = {"", "__main__"}

# Week 1's modules import no third-party package except MLX.
MLX_ONLY = {
    "basics",
    "attention.dense",
    "positional_encoding",
    "layer_norm",
    "embedding",
    "quantize.dequantize",
    "quantize.weights",
    "qwen3_week1.attention",
    "qwen3_week1.mlp",
    "qwen3_week1.model",
    "sampling_ops",
    "sampler",
}
MLX_ONLY_LIBRARY = {"math", "typing", "collections", "dataclasses", "functools", "types", "mlx"}

# Plain Python modules, which import no array library.
ARRAY_FREE = (
    "engine.inputs",
    "engine.scheduling",
    "engine.tool_calls",
    "engine.outputs.output_processor",
    "engine.structured_output.grammar",
    "engine.spec_decode.draft_tokens",
)

STANDARD_LIBRARY = set(sys.stdlib_module_names)


def problems(modules: Mapping[str, Module]) -> list[str]:
    """Checks all rules; returns one sentence per violation."""
    inside = [module for name, module in modules.items() if name not in ENTRY_POINTS]
    found = [sentence for module in inside for sentence in _problems_of(module)]
    found += _problems_of_week_1(modules)
    cycle = find_cycle({module.name: module.internal for module in inside})
    if cycle:
        found.append(f"these modules form an import cycle: {' → '.join(cycle)}.")
    for component in LAYER.keys() - {module.component for module in inside}:
        found.append(f"{component} is in LAYERS, but not in the package.")
    for component in LAYER:
        cycle = find_cycle(child_imports(component, modules))
        if cycle:
            found.append(f"sub-packages of {component} form an import cycle: {' → '.join(cycle)}.")
    return sorted(found)


def _problems_of(module: Module) -> list[str]:
    name, component = module.name, module.component
    found = []
    if component not in LAYER:
        return [f"{component} is in no layer; add it to LAYERS."]
    for other in sorted(module.internal):
        target = other.partition(".")[0]
        if target != component and LAYER.get(target, -1) >= LAYER[component]:
            found.append(f"{name} imports {other}, which is not in a lower layer.")
        if target in COURSE and component not in COURSE | COMMANDS:
            found.append(f"{name} imports {other}, which belongs to the course.")
    if module.has_star_import:
        found.append(f"{name} has an `import *`; import names explicitly.")
    if module.has_getattr:
        found.append(f"{name} defines __getattr__, which hides imports.")
    for function in sorted(module.dynamic_imports):
        found.append(f"{name} uses {function}, which hides imports.")
    if "tiny_llm" in module.external:
        found.append(f"{name} imports tiny_llm by name; use a relative import.")
    if "tiny_llm_ext" in module.external and name != "kernels":
        found.append(f"{name} imports the extension; only kernels may.")
    if name in MLX_ONLY:
        others = module.external - MLX_ONLY_LIBRARY
        if others:
            found.append(f"{name} imports {_listed(others)}; Week 1 may import only MLX.")
    if is_array_free(name):
        packages = {"engine", "engine.structured_output", "engine.spec_decode", "errors"}
        internal = {other for other in module.internal - packages if not is_array_free(other)}
        others = (module.external - STANDARD_LIBRARY) | internal
        if others:
            found.append(f"{name} imports {_listed(others)}; it must be plain Python.")
    return found


def _problems_of_week_1(modules: Mapping[str, Module]) -> list[str]:
    """Third-party imports of Week 1, except MLX and the lazily loaded extension."""
    found = []
    imports = {name: module.internal for name, module in modules.items()}
    for name in sorted(reachable("qwen3_week1", imports)):
        others = modules[name].external - STANDARD_LIBRARY - {"mlx", "tiny_llm_ext"}
        if others:
            found.append(f"{name}, a dependency of Week 1, imports {_listed(others)}.")
    return found


def reachable(start: str, imports: Mapping[str, Set[str]]) -> set[str]:
    """A module or component and its transitive imports; empty if it is unknown."""
    found: set[str] = set()
    todo = [start]
    while todo:
        name = todo.pop()
        if name not in found and name in imports:
            found.add(name)
            todo += imports[name]
    return found


def find_cycle(graph: Mapping[str, frozenset[str]]) -> list[str]:
    """A cycle, with its first name repeated at the end; empty if the graph is acyclic."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(reversed(error.args[1]))  # graphlib lists dependencies first
    return []


def child_imports(package: str, modules: Mapping[str, Module]) -> dict[str, frozenset[str]]:
    """Imports between the children of a package; a sub-package is one node."""

    def child(name: str) -> str:
        return ".".join(name.split(".")[:2])

    graph: dict[str, set[str]] = {}
    for module in modules.values():
        if module.name.startswith(f"{package}."):
            others = {child(name) for name in module.internal if name.startswith(f"{package}.")}
            graph.setdefault(child(module.name), set()).update(others - {child(module.name)})
    return {name: frozenset(others) for name, others in graph.items()}


def is_array_free(name: str) -> bool:
    """Whether a module must not import MLX or any other array library."""
    return any(name == each or name.startswith(f"{each}.") for each in ARRAY_FREE)


def component_imports(modules: Mapping[str, Module]) -> dict[str, set[str]]:
    """Maps each component to the components that it imports."""
    components: dict[str, set[str]] = {component: set() for component in LAYER}
    for module in modules.values():
        if module.name not in ENTRY_POINTS:
            others = {other.partition(".")[0] for other in module.internal}
            components.setdefault(module.component, set()).update(others - {module.component})
    return components


def _listed(names: set[str] | frozenset[str]) -> str:
    return ", ".join(sorted(names))
