"""The shape of the tree: which file may import which, and that its page tells the truth."""

import ast
import re
import sys
from pathlib import Path

import pytest

import tiny_llm

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "tiny_llm"

# Imports go from a line to the lines above it, never down. A module that is not here fails the
# test: decide where it belongs when you add it.
LAYERS = [
    {"errors", "models.costs", "demo", "demo.prompts"},
    {"basics", "kernels", "models.detokenizer"},
    {"kernels.interleaved"},
    {
        "sampler",
        "attention.dense",
        "positional_encoding",
        "layer_norm",
        "embedding",
        "quantize",
        "kernels.recorded",
    },
    {"attention.paged"},
    {"attention"},
    {"kv_cache.full", "kv_cache.page_pool"},
    {"kv_cache.paged"},
    {"kv_cache.batching", "kv_cache.placement"},
    {"kv_cache.plans", "kv_cache.ragged"},
    {"kv_cache"},
    {"paged_kv_cache", "qwen3_week1", "qwen3_week2"},
    {"qwen3_week3"},
    {"models.files", "models.layout", "models.chat_template"},
    {"models.weights", "models.tokenizer", "models.names", "models.dispatch"},
    {"models.loading"},
    {"models"},
    {"generate.stream"},
    {"generate.speculative"},
    {"generate.loops"},
    {"generate"},
    {"batch"},
    {"engine", "engine.arguments", "engine.config", "engine.page_allocator", "engine.events"},
    {"engine.sampling_params", "engine.prompt_forms", "engine.prefix_cache"},
    {"engine.request"},
    {"engine.page_manager", "engine.outputs"},
    {"engine.step", "engine.answer_text"},
    {"engine.scheduler", "engine.answer"},
    {"engine.sampling", "engine.paged_model"},
    {"engine.draft_model"},
    {"engine.runner"},
    {"engine.core"},
    {"engine.llm"},
    {"cli.learner", "cli.arguments"},
    {"cli.command"},
    {"cli.backend", "cli.workload", "cli.batch_progress"},
    {"cli.engine_run"},
    {"cli.batch_runs"},
    {"cli.batch_view"},
    {"cli.main", "cli.chat", "cli.batch_main", "cli.bench", "cli.check_installation"},
    {"cli.program"},
    {"__main__"},
]
RANK = {module: rank for rank, layer in enumerate(LAYERS) for module in layer}

# Week 1 is importable and readable with nothing but MLX.
MLX_ONLY = {"basics", "attention.dense", "positional_encoding", "layer_norm", "embedding"}
MLX_ONLY |= {"quantize", "qwen3_week1", "sampler"}

# Which tokens are computed next, and in which pages, is decided without any array.
NO_MLX = {
    f"engine.{name}"
    for name in (
        "arguments",
        "sampling_params",
        "config",
        "request",
        "page_allocator",
        "prefix_cache",
        "page_manager",
        "events",
        "step",
        "scheduler",
        "answer_text",
        "answer",
        "prompt_forms",
        "outputs",
    )
}

FILES = sorted(PACKAGE.rglob("*.py"))


def module_name(file: Path) -> str:
    """`cli.main` for src/tiny_llm/cli/main.py, `demo` for a package's own __init__."""
    parts = file.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(file: Path) -> tuple[set[str], set[str]]:
    """The package's own modules that a file imports, and the top-level names of all others."""
    own, foreign = set(), set()
    modules = {module_name(other) for other in FILES}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            foreign |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            foreign.add((node.module or "").split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            parents = file.relative_to(PACKAGE).parent.parts
            base = [*parents[: len(parents) - node.level + 1]]
            base += node.module.split(".") if node.module else []
            for alias in node.names:
                submodule = ".".join([*base, alias.name])
                own.add(submodule if submodule in modules else ".".join(base))
    return own, foreign


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_imports_go_one_way(file):
    name = module_name(file)
    if name in ("", "cli"):  # the package's own __init__ lists everything
        return
    assert name in RANK, f"{name} has no place in LAYERS yet"
    own, foreign = imports_of(file)
    assert "tiny_llm" not in foreign, "inside the package, imports are relative"
    for imported in own:
        assert RANK[imported] < RANK[name], f"{name} may not import {imported}"
    if name in MLX_ONLY:
        library = {"math", "typing", "collections", "dataclasses", "functools", "types"}
        others = foreign - library - {"mlx"}
        assert not others, f"{name} imports {others}; the mathematics needs MLX alone"
    if name in NO_MLX:
        others = foreign - set(sys.stdlib_module_names)
        assert not others, f"{name} imports {others}; the scheduler is plain Python"
        assert own <= NO_MLX | {"errors"}, f"{name} imports {own - NO_MLX}, which may need MLX"


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_no_star_imports(file):
    assert "import *" not in file.read_text(encoding="utf-8")


def test_public_names_exist_and_are_documented():
    # As the linter sorts them: what is in capitals first.
    assert tiny_llm.__all__ == sorted(tiny_llm.__all__, key=lambda name: (not name.isupper(), name))
    for name in tiny_llm.__all__:
        assert getattr(tiny_llm, name).__doc__, f"{name} has no docstring"


def tree_of_the_page() -> dict[str, str]:
    """The paths of the architecture page's tree and their lines, read from its indentation."""
    block = re.search(
        r"```text\n(tiny-llm/.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL
    )
    assert block, "ARCHITECTURE.md has no tree"
    tree: dict[str, str] = {}
    parents: list[str] = []
    for line in block[1].splitlines()[1:]:
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2 - 1
        parents = [*parents[:depth], name.rstrip("/")]
        tree["/".join(parents)] = line.strip()
    return tree


def test_tree_of_the_page_names_only_what_exists():
    for path, line in tree_of_the_page().items():
        assert (ROOT / path).exists(), f"ARCHITECTURE.md's tree has {line!r}, the folder does not"


def test_tree_of_the_page_names_all_there_is():
    tree = tree_of_the_page()
    expected = {path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py")}
    expected = {path for path in expected if not path.endswith("__init__.py")}
    folders = (path for path in (ROOT / "tests").iterdir() if path.is_dir())
    expected |= {path.relative_to(ROOT).as_posix() for path in folders}
    hidden = {"__pycache__"}
    missing = {path for path in expected - tree.keys() if Path(path).name not in hidden}
    assert not missing, f"ARCHITECTURE.md's tree lacks {sorted(missing)}"


def test_scripts_of_the_readme_exist():
    readme = (ROOT / "README.md").read_text()
    pyproject = (ROOT / "pyproject.toml").read_text()
    for script in set(re.findall(r"(?:pdm|\./pdmw) run ([a-z-]+)", readme)):
        assert re.search(rf"^{script} = ", pyproject, re.MULTILINE), f"there is no script {script}"


def test_files_that_the_page_names_exist():
    prose = re.sub(r"```text\n.*?```", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.DOTALL)
    for path in set(re.findall(r"`([\w./]+/?(?:\.py|/))`", prose)):
        places = (ROOT, PACKAGE, PACKAGE.parent / "extensions" / "src")
        assert any((place / path).exists() for place in places), f"there is no {path}"


def test_the_top_of_the_package_has_at_most_twenty_entries():
    hidden = {"__init__.py", "__main__.py", "__pycache__"}
    entries = sorted(path.name for path in PACKAGE.iterdir() if path.name not in hidden)
    assert len(entries) <= 20, f"move one of {entries} into a folder"


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150, f"README.md has {len(lines)} lines; move details to the book"
