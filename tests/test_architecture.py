"""The shape of the tree: which file may import which, and that its page tells the truth."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_llm
from tools.architecture.__main__ import PICTURE, check, main
from tools.architecture.imports import read_package
from tools.architecture.rules import FLOOR, PACKAGE, WITHOUT_ARRAYS, find_circle, problems

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def modules():
    return read_package(PACKAGE)


def test_the_house_is_in_order_and_its_picture_is_true():
    assert check() == []


def test_every_file_is_read(modules):
    assert len(modules) == len(list(PACKAGE.rglob("*.py")))
    assert modules["engine.scheduler"].own >= {"engine.request", "errors"}
    assert modules["qwen3_week2"].own >= {"kernels.recorded", "kernels", "quantize"}
    assert "mlx" in modules["basics"].foreign
    assert modules[""].finder, "the package finds the engine's names when they are used"


def test_the_engine_s_files_without_arrays_exist(modules):
    assert modules.keys() >= WITHOUT_ARRAYS


@pytest.mark.parametrize(
    ("name", "statement", "sentence"),
    [
        ("basics", "from .attention import causal_mask", "basics imports attention, which is not"),
        ("basics", "from . import sampler", "basics imports sampler, which is not on a floor"),
        ("quantize", "from . import embedding", "quantize imports embedding, which is not on a"),
        ("kv_cache.full", "from ..engine import step", "kv_cache.full imports engine.step, which"),
        ("kv_cache.full", "from ..engine.step import Step", "kv_cache.full imports engine.step"),
        (
            "kv_cache.full",
            "from .paged_storage import PagedStorage",
            "import each other in a circle: ",
        ),
        ("kv_cache.full", "from . import TinyKvCache", "in a circle: kv_cache"),
        ("batch", "from .cli.main import main", "batch imports cli, which is not on a floor below"),
        ("batch", "from .errors import *", "batch has an `import *`"),
        ("batch", "def __getattr__(name): ...", "batch has a __getattr__ of its own"),
        ("batch", "if True:\n    def __getattr__(name): ...", "batch has a __getattr__"),
        ("batch", "import importlib\nimportlib.import_module('x')", "batch uses import_module"),
        ("batch", "from importlib import import_module as f", "batch uses import_module"),
        ("batch", "cli = __import__('tiny_llm.cli')", "batch uses __import__"),
        ("batch", "exec('import tiny_llm.cli')", "batch uses exec, which hides"),
        ("batch", "from tiny_llm import cli", "batch imports tiny_llm by name"),
        ("batch", "if TYPE_CHECKING:\n    from .cli import chat", "batch imports cli.chat, which"),
        ("batch", "def f():\n    from .cli import chat", "batch imports cli.chat, which is not"),
        ("batch", "import tiny_llm_ext", "batch imports the extension, which only kernels does"),
        ("sampler", "import numpy", "sampler imports numpy; the mathematics needs MLX alone"),
        ("kernels.interleaved", "import numpy", "interleaved, which Week 1 imports, imports numpy"),
        ("engine.request", "import mlx.core", "engine.request imports mlx; the scheduler is plain"),
        ("engine.step", "from .runner import x", "engine.step imports engine.runner; the sched"),
        ("engine.step", "from ..sampler import x", "engine.step imports sampler; the scheduler"),
        ("attic", "", "attic has no floor yet"),
    ],
)
def test_what_breaks_a_rule_is_told(tmp_path, modules, name, statement, sentence):
    folder = tmp_path / "package"
    for known in modules:  # the same names, each file empty: `from .a import b` looks them up
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
    both = {
        field: getattr(before, field) | getattr(changed, field)
        for field in ("own", "foreign", "stars", "finder", "hidden")
    }
    found = problems({**modules, name: replace(before, **both)})
    assert any(sentence in each for each in found), found
    assert all(each.endswith(".") and "\n" not in each for each in found)


def test_a_room_that_is_gone(modules):
    rest = {name: module for name, module in modules.items() if module.room != "demo"}
    assert "demo has a floor in FLOORS, and is not in the package." in problems(rest)


def test_circles():
    graph = {name: frozenset(others) for name, others in {"a": "b", "b": "c", "c": "d"}.items()}
    assert find_circle(graph) == []
    assert find_circle({**graph, "d": frozenset("b")}) in (
        ["b", "c", "d", "b"],
        ["c", "d", "b", "c"],
        ["d", "b", "c", "d"],
    )


def test_a_picture_of_the_past(tmp_path, capsys, monkeypatch):
    old = tmp_path / "architecture.svg"
    assert check(old) == [
        "architecture.svg shows other imports than the package has: `pdm run architecture`."
    ]
    old.write_text(PICTURE.read_text())
    assert check(old) == []
    old.write_text(PICTURE.read_text().replace("engine/", "motor/"))
    assert len(check(old)) == 1
    monkeypatch.setattr("tools.architecture.__main__.problems", lambda modules: ["This is bad."])
    assert main(["--check"]) == 1
    assert capsys.readouterr().err == "architecture: This is bad.\n"


def test_the_picture_shows_every_room_once():
    names = re.findall(r'text-anchor="middle">([^<]+)<', PICTURE.read_text())
    assert sorted(name.rstrip("/") for name in names) == sorted(FLOOR)


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


def test_the_top_of_the_package_has_few_entries():
    """The course's files, and a folder for each of the rest: the server is the twenty-first."""
    hidden = {"__init__.py", "__main__.py", "__pycache__"}
    entries = sorted(path.name for path in PACKAGE.iterdir() if path.name not in hidden)
    assert len(entries) <= 21, f"move one of {entries} into a folder"


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150, f"README.md has {len(lines)} lines; move details to the book"
