"""Architecture: import rules, and ARCHITECTURE.md's diagram and tree."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_llm
from tools.architecture.__main__ import DIAGRAM, check, main
from tools.architecture.asserts import impure_asserts
from tools.architecture.imports import read_package
from tools.architecture.rules import ARRAY_FREE, LAYER, PACKAGE, find_cycle, problems
from tools.architecture.tree import PAGE, entries_of, page, tree, unordered

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def modules():
    return read_package(PACKAGE)


@pytest.mark.slow
def test_rules_hold_and_diagram_and_tree_are_current():
    assert check() == []


def test_every_module_is_checked(modules):
    assert len(modules) == len(list(PACKAGE.rglob("*.py")))
    imported = modules["engine.scheduling.scheduler"].internal
    assert imported >= {"engine.scheduling.request", "errors"}
    assert modules["qwen3_week2.model"].internal >= {"kernels.prepack", "kernels", "quantize"}
    assert "mlx" in modules["basics"].external
    assert modules[""].has_getattr, "the package must import the engine lazily"
    assert modules.keys() >= set(ARRAY_FREE)


@pytest.mark.parametrize(
    ("name", "statement", "sentence"),
    [
        ("basics", "from .attention import causal_mask", "basics imports attention, which is not"),
        ("basics", "from . import sampler", "basics imports sampler, which is not in a"),
        ("quantize.weights", "from .. import embedding", "weights imports embedding, which is not"),
        ("kv_cache.full", "from ..engine import core", "kv_cache.full imports engine.core, which"),
        ("kv_cache.full", "from ..engine.core import x", "kv_cache.full imports engine.core"),
        ("kv_cache.full", "from .paged import TinyKvPagedCache", "form an import cycle: "),
        ("kv_cache.full", "from . import TinyKvCache", "import cycle: kv_cache"),
        ("models.loading", "from ..sampler import sample", "imports sampler, which belongs to"),
        ("engine.core", "from ..generate.loops import x", "core imports generate.loops, which"),
        ("batch", "from .cli.main import main", "batch imports cli, which is not in a lower layer"),
        ("batch", "from .errors import *", "batch has an `import *`"),
        ("batch", "def __getattr__(name): ...", "batch defines __getattr__"),
        ("batch", "if True:\n    def __getattr__(name): ...", "batch defines __getattr__"),
        ("batch", "import importlib\nimportlib.import_module('x')", "batch uses import_module"),
        ("batch", "from importlib import import_module as f", "batch uses import_module"),
        ("batch", "cli = __import__('tiny_llm.cli')", "batch uses __import__"),
        ("batch", "exec('import tiny_llm.cli')", "batch uses exec, which hides"),
        ("batch", "from tiny_llm import cli", "batch imports tiny_llm by name"),
        ("batch", "if TYPE_CHECKING:\n    from .cli import chat", "batch imports cli.chat, which"),
        ("batch", "def f():\n    from .cli import chat", "batch imports cli.chat, which is not"),
        ("batch", "import tiny_llm_ext", "batch imports the extension; only kernels may"),
        ("sampler", "import numpy", "sampler imports numpy; Week 1 may import only MLX"),
        ("kernels.prepack", "import numpy", "prepack, a dependency of Week 1, imports numpy"),
        ("engine.scheduling.request", "import mlx.core", "request imports mlx; it must be plain"),
        ("engine.scheduling.outputs", "from ..core import x", "imports engine.core; it must be"),
        ("engine.scheduling.outputs", "from ...sampler import x", "imports sampler; it must be"),
        (
            "engine.inputs.prompts",
            "from ..scheduling.config import x",
            "sub-packages of engine form an import cycle: ",
        ),
        ("attic", "", "attic is in no layer"),
    ],
)
def test_broken_rules_are_reported(tmp_path, modules, name, statement, sentence):
    folder = tmp_path / "package"
    for known in modules:  # includes empty modules, so that `from .a import b` resolves
        is_folder = any(other.startswith(f"{known}.") for other in modules) or not known
        path = folder / known.replace(".", "/")
        file = path / "__init__.py" if is_folder else path.with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if known == name:
            file.write_text(statement)
    if name not in modules:
        (folder / f"{name}.py").write_text(statement)
    changed = read_package(folder)[name]
    before = modules.get(name, changed)
    fields = ("internal", "external", "has_star_import", "has_getattr", "dynamic_imports")
    both = {field: getattr(before, field) | getattr(changed, field) for field in fields}
    found = problems({**modules, name: replace(before, **both)})
    assert any(sentence in each for each in found), found
    assert all(each.endswith(".") and "\n" not in each for each in found)


def test_missing_component(modules):
    rest = {name: module for name, module in modules.items() if module.component != "demo"}
    assert "demo is in LAYERS, but not in the package." in problems(rest)


def test_find_cycle():
    graph = {name: frozenset(others) for name, others in {"a": "b", "b": "c", "c": "d"}.items()}
    assert find_cycle(graph) == []
    cycle = "".join(find_cycle({**graph, "d": frozenset("b")}))
    assert cycle in ("bcdb", "cdbc", "dbcd")


@pytest.mark.slow
def test_outdated_diagram(tmp_path, capsys, monkeypatch):
    old = tmp_path / "architecture.svg"
    assert check(old) == ["architecture.svg is outdated; run `pdm run architecture`."]
    old.write_text(DIAGRAM.read_text())
    assert check(old) == []
    old.write_text(DIAGRAM.read_text().replace("engine/", "motor/"))
    assert len(check(old)) == 1
    monkeypatch.setattr("tools.architecture.__main__.problems", lambda modules: ["This is bad."])
    assert main(["--check"]) == 1
    assert capsys.readouterr().err == "architecture: This is bad.\n"


def test_diagram_shows_every_component_once():
    names = re.findall(r'text-anchor="middle">([^<]+)<', DIAGRAM.read_text())
    assert sorted(name.rstrip("/") for name in names) == sorted(LAYER)


def test_public_names_exist_and_are_documented():
    # The linter requires this order: constants first.
    assert tiny_llm.__all__ == sorted(tiny_llm.__all__, key=lambda name: (not name.isupper(), name))
    for name in tiny_llm.__all__:
        assert getattr(tiny_llm, name).__doc__, f"{name} has no docstring"


def documented_tree() -> dict[str, str]:
    """Paths in ARCHITECTURE.md's tree and their lines, parsed by indentation."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    block = re.search(r"```text\n(tiny-llm/.*?)```", text, re.DOTALL)
    assert block, "ARCHITECTURE.md has no tree"
    tree: dict[str, str] = {}
    parents: list[str] = []
    for line in block[1].splitlines()[1:]:
        name, *_ = line.split()
        if name != "#":  # a heading
            depth = (len(line) - len(line.lstrip())) // 2 - 1
            parents = [*parents[:depth], name.rstrip("/")]
            tree["/".join(parents)] = line.strip()
    return tree


def test_tree_lists_only_existing_files():
    for path, line in documented_tree().items():
        assert (ROOT / path).exists(), f"ARCHITECTURE.md lists {line!r}, which does not exist"


@pytest.mark.slow
def test_outdated_tree_is_reported(monkeypatch):
    current = PAGE.read_text(encoding="utf-8")
    assert page(current.replace("      scheduling/", "      planning/")) == current
    monkeypatch.setattr("tools.architecture.__main__.page", lambda text: text + "x")
    assert check() == ["the tree in ARCHITECTURE.md is outdated; run `pdm run architecture`."]


def test_reading_order_lists_every_entry(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").write_text('"""A.\n\nReading order: one, two.\n"""')
    (package / "one.py").write_text('"""One."""')
    assert unordered(package) == ["package/__init__.py: reading order and entries differ: two."]
    (package / "two.py").write_text('"""Two."""')
    assert unordered(package) == []


def test_first_lines_fit_the_tree():
    cut = [line for line in tree().splitlines() if line.endswith("…")]
    assert not cut, "shorten the first docstring line of these modules"


def test_packages_have_at_most_a_dozen_entries():
    limits = {"src/tiny_llm": 24}
    for init in PACKAGE.rglob("__init__.py"):
        name = init.parent.relative_to(ROOT).as_posix()
        assert len(entries_of(init.parent)) <= limits.get(name, 12), (
            f"{name} has too many entries; split it"
        )


def test_readme():
    readme = (ROOT / "README.md").read_text()
    pyproject = (ROOT / "pyproject.toml").read_text()
    for script in set(re.findall(r"(?:pdm|\./pdmw) run ([a-z-]+)", readme)):
        assert re.search(rf"^{script} = ", pyproject, re.MULTILINE), (
            f"README.md uses the script {script}, which pyproject.toml lacks"
        )
    num_lines = len(readme.splitlines())
    assert num_lines <= 150, f"README.md has {num_lines} lines; move details to the book"


def test_files_in_architecture_page_exist():
    prose = re.sub(r"```text\n.*?```", "", (ROOT / "ARCHITECTURE.md").read_text(), flags=re.DOTALL)
    for path in set(re.findall(r"`([\w./]+/?(?:\.py|/))`", prose)):
        bases = (ROOT, PACKAGE, PACKAGE.parent / "extensions" / "src")
        assert any((base / path).exists() for base in bases), (
            f"ARCHITECTURE.md mentions {path}, which does not exist"
        )


STREAM = """class Stream:
    @property
    def last_segment(self):
        self.num_emitted = len(self.text)
    @property
    def text(self):
        return 'a'
    def read(self):
"""


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("segments.pop()", "calls `segments.pop`"),
        ("next(iterator) == 1", "calls `next`"),
        ("(letter := letters[0])", "contains `(letter := letters[0])`"),
        ("self.last_segment", "reads the property `last_segment`, which changes an attribute"),
        ("len(names) == 3 and isinstance(x, int)", None),
        ("self.text == 'a'", None),
    ],
)
def test_asserts_have_no_side_effects(tmp_path, test, reason):
    (tmp_path / "stream.py").write_text(STREAM + f"        assert {test}\n")
    found = [error.split(";")[0] for error in impure_asserts(tmp_path)]
    expected = f"stream.py:9: `python -O` removes this assert, which {reason}"
    assert found == ([expected] if reason else [])
