"""The tests are tested: every mistake of `wrong/` makes the tests of its task fail.

A mistake is put into a copy of the one file that it is made in, the copy takes that file's place,
and the task's tests run in a process of their own. C++ is compiled anew for each.
"""

import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from tests.course.support import HAVE_CODE
from tests.course.wrong import Wrong, week_1, week_2, week_3, week_3_pages
from tests.metal.support import NO_CLANG
from tools.course.build import build_tree
from tools.course.markers import all_blocks
from tools.course.outcomes import Outcome, Runner
from tools.course.reveal import apply_tasks
from tools.course.start import write_tree
from tools.course.tasks import TASKS, day_of_task
from tools.course.tree import ROOT, starter_files
from tools.metal_emulator import has_clang

WRONG = [*week_1.WRONG, *week_2.WRONG, *week_3_pages.WRONG, *week_3.WRONG]
BLOCKS = all_blocks(ROOT / "src")

# What the emulator runs needs no build; with Metal there is a library of kernels, which does.
INTERPRETED = {".py"} if mx.metal.is_available() else {".py", ".metal"}
IN_PYTHON = [wrong for wrong in WRONG if BLOCKS[wrong.block][0].suffix in INTERPRETED]
FIRST_OF_DAYS = {day_of_task(wrong.task).id: wrong for wrong in reversed(IN_PYTHON)}.values()
IN_CPP = [wrong for wrong in WRONG if BLOCKS[wrong.block][0].suffix not in INTERPRETED]

# What a message has that says more than that something is wrong: both sides of a comparison, or a
# sentence of the code's own checks.
TEACHES = re.compile(
    r"expected|instead of|==|<=|>=| in | is None|DID NOT RAISE|Regex|Mismatched"
    r"|^(tiny_llm\.\S+|ValueError): .{20}"
)


def patched(wrong: Wrong) -> tuple[Path, str]:
    """The file of a mistake, below the project's root, and its contents with the mistake."""
    path, block = BLOCKS[wrong.block]
    lines = path.read_text(encoding="utf-8").split("\n")
    code = "\n".join(lines[block.start : block.end])
    count = code.count(wrong.find)
    assert count == 1, f"{wrong}: {wrong.find!r} occurs {count} times in the block"
    lines[block.start : block.end] = code.replace(wrong.find, wrong.replace).split("\n")
    text = "\n".join(lines)
    if path.suffix == ".py":
        compile(text, str(path), "exec")
    return path.relative_to(ROOT), text


def test_every_task_has_two_wrong_solutions():
    counts = Counter(wrong.task for wrong in WRONG)
    lacking = {task: counts[task] for task in HAVE_CODE if counts[task] < 2}
    assert not lacking
    assert len({str(wrong) for wrong in WRONG}) == len(WRONG)


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_wrong_solutions_change_one_place_of_their_block(wrong):
    assert patched(wrong)[1] != (ROOT / patched(wrong)[0]).read_text(encoding="utf-8")


def run_task(runner: Runner, tree: Path, wrong: Wrong) -> list[Outcome]:
    """Runs the tests of the mistake's task on a tree."""
    number = TASKS[wrong.tested_by].number
    tests = day_of_task(wrong.tested_by).test_file
    options = ("-x", "--tb=short", "-m", "not slow", "-k", f"task_{number}_")
    return runner.run(tree, [tests], *options, timeout=120)


def run_python(runner: Runner, folder: Path, wrong: Wrong) -> list[Outcome]:
    """A tree that has nothing but the wrong file; all else is the solution's, the extension too."""
    names = {"sitecustomize.py", "__init__.py"}
    files = {path: text for path, text in starter_files(folder).items() if path.name in names}
    path, text = patched(wrong)
    for name, contents in {**files, path: text}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(contents, encoding="utf-8")
    package = folder / "build" / "package" / "tiny_llm_ext"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "src/extensions/tiny_llm_ext/__init__.py", package)
    for module in (Path(sysconfig.get_path("platlib")) / "tiny_llm_ext").glob("_ext.*"):
        (package / module.name).symlink_to(module)
    return run_task(runner, folder, wrong)


def run_cpp(runner: Runner, tree: Path, wrong: Wrong) -> list[Outcome]:
    """A learner's tree that is complete, but for one file."""
    path, text = patched(wrong)
    right = (tree / path).read_text(encoding="utf-8")
    try:
        (tree / path).write_text(text, encoding="utf-8")
        said = build_tree(tree)
        assert said is None, said
        return run_task(runner, tree, wrong)
    finally:
        (tree / path).write_text(right, encoding="utf-8")


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def complete_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = tmp_path_factory.mktemp("complete") / "mine"
    write_tree(tree)
    apply_tasks(tree, HAVE_CODE)
    return tree


def assert_caught(wrong: Wrong, outcomes: list[Outcome]) -> None:
    failed = [outcome for outcome in outcomes if outcome.passed is False]
    assert failed, f"the tests of task {wrong.tested_by} do not notice: {wrong.what}"
    outcome = failed[0]
    assert outcome.test, f"{wrong}: the process died: {outcome.message}"
    print(f"{wrong}\n    {outcome.test}\n    {outcome.message[:300]}")
    assert TEACHES.search(outcome.message), (
        f"{wrong}: {outcome.test} says too little: {outcome.message}"
    )


@pytest.mark.parametrize(
    "wrong",
    [
        wrong if wrong in FIRST_OF_DAYS else pytest.param(wrong, marks=pytest.mark.slow)
        for wrong in IN_PYTHON
    ],
    ids=str,
)
def test_a_mistake_in_python_or_metal_is_caught(runner, tmp_path, wrong):
    if BLOCKS[wrong.block][0].suffix == ".metal" and not has_clang():
        pytest.skip(NO_CLANG)
    assert_caught(wrong, run_python(runner, tmp_path / "mine", wrong))


@pytest.mark.slow
@pytest.mark.parametrize("wrong", IN_CPP, ids=str)
def test_a_mistake_in_cpp_is_caught(runner, complete_tree, wrong):
    assert_caught(wrong, run_cpp(runner, complete_tree, wrong))
