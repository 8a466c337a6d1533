"""Applies the mistakes of tests/course/wrong and runs the tests on them.

A mistake is applied to a copy of its file. A Python or Metal file runs with the solution's other
modules; a C++ file is compiled in an otherwise complete learner's source tree.
"""

import os
import shutil
import sysconfig
from pathlib import Path

import mlx.core as mx

from tests.course.wrong import Wrong

from .build import build_tree
from .markers import all_blocks
from .reveal import apply_tasks
from .runner import Outcome, Runner
from .start import write_tree
from .tasks import TASKS, day_of_task
from .tree import EXTENSION, ROOT, import_files

BLOCKS = all_blocks(ROOT / "src")
TIMEOUT = 120  # seconds for the tests of one task

# Suffixes of files that run without a build. With a GPU, a Metal file requires a build.
INTERPRETED = {".py"} if mx.metal.is_available() else {".py", ".metal"}


def suffix_of(wrong: Wrong) -> str:
    """File suffix of a mistake, such as ".cpp"."""
    return BLOCKS[wrong.block][0].suffix


def apply_mistake(wrong: Wrong) -> tuple[Path, str]:
    """Returns the relative path of the changed file, and its contents with the mistake."""
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


def run_task(runner: Runner, tree: Path, wrong: Wrong, *options: str) -> list[Outcome]:
    """Runs the tests of the mistake's task on a learner's source tree."""
    number = TASKS[wrong.tested_by].number
    tests = day_of_task(wrong.tested_by).test_file
    chosen = ("--tb=short", "-m", "not slow", "-k", f"task_{number}_", *options)
    return runner.run(tree, [tests], *chosen, timeout=TIMEOUT)


def run_interpreted(runner: Runner, folder: Path, wrong: Wrong, *options: str) -> list[Outcome]:
    """Runs the tests on a source tree that has only the file with the mistake.

    All other modules are the solution's. `folder` must be new.
    """
    write_tree_of(folder, *apply_mistake(wrong))
    return run_task(runner, folder, wrong, *options)


def write_tree_of(folder: Path, path: Path, text: str) -> None:
    """Writes a learner's source tree with one module to the new folder.

    `path` is relative to the project's root. All other modules are the solution's.
    """
    for name, contents in {**import_files(folder, [path]), path: text}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(contents, encoding="utf-8")
    package = folder / "build" / "package" / "tiny_llm_ext"
    package.mkdir(parents=True)
    for module in (ROOT / "src/extensions/tiny_llm_ext").glob("*.py"):
        shutil.copy(module, package)
    for module in (Path(sysconfig.get_path("platlib")) / "tiny_llm_ext").glob("_ext.*"):
        (package / module.name).symlink_to(module)


def write_complete_tree(tree: Path) -> None:
    """Writes a learner's source tree with every task solved; identical files keep their mtime."""
    files = [path for path in (tree / EXTENSION).rglob("*") if path.is_file()]
    before = [(path, path.read_bytes(), path.stat().st_mtime_ns) for path in files]
    write_tree(tree)
    apply_tasks(tree, {block.task for _, block in BLOCKS.values() if block.task is not None})
    for path, contents, mtime in before:
        if path.read_bytes() == contents:
            os.utime(path, ns=(mtime, mtime))


def run_compiled(runner: Runner, tree: Path, wrong: Wrong, *options: str) -> list[Outcome]:
    """Compiles a C++ mistake in a complete source tree and runs the tests.

    `tree` is the output of `write_complete_tree`; the mistake is reverted afterwards.
    """
    path, text = apply_mistake(wrong)
    original = (tree / path).read_text(encoding="utf-8")
    try:
        (tree / path).write_text(text, encoding="utf-8")
        output = build_tree(tree)
        assert output is None, output
        return run_task(runner, tree, wrong, *options)
    finally:
        (tree / path).write_text(original, encoding="utf-8")
