"""`pdm run reveal --week N --day M [--task K]`: diff with the solution.

Compares the learner's code with the solution's, block by block. --apply inserts the solution's
code, except into tasks with passing tests, and backs up the learner's code in revealed/.
"""

import argparse
import difflib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax

from .markers import Block, MarkerError, all_blocks, find_blocks
from .results import is_done, outcomes_by_task
from .solution_flag import selected_tree
from .starter import has_code
from .tasks import TASKS, Day, day_of, day_of_task
from .tree import ROOT, display_path

# The starter's placeholder, in Python, C++ and CMake.
STARTER = re.compile(
    r"(?:raise TaskNotImplemented\(|throw std::runtime_error\(|message\(FATAL_ERROR)"
    r'\s*"week \d[^"]*"(?:\s*"[^"]*")*\s*\);?|#error week \d.*'
)


@dataclass(frozen=True)
class Difference:
    """A task's block: its lines in the learner's source tree and in the solution.

    `file` is relative to the learner's source tree and to the repository; `block` is the position
    in the learner's file; `is_begun` tells whether the learner has edited the block.
    """

    file: Path
    block: Block
    mine: list[str]
    solution: list[str]
    is_begun: bool


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0, or 2 if there is nothing to show or apply."""
    parser = argparse.ArgumentParser(
        prog="reveal", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--week", type=int, required=True, metavar="N")
    parser.add_argument("--day", type=int, required=True, metavar="M")
    parser.add_argument("--task", type=int, metavar="K", help="default: all tasks of the day")
    parser.add_argument("--apply", action="store_true", help="insert the solution's code")
    parser.add_argument(
        "--force", action="store_true", help="with --apply: replace passing code too"
    )
    args = parser.parse_args(argv)
    tree = selected_tree(parser, "mine")
    assert tree is not None
    console = Console(highlight=False, emoji=False)
    if args.force and not args.apply:
        parser.error("--force requires --apply")
    try:
        tasks = tasks_of(day_of(args.week, args.day), args.task)
        found = list(differences(tree, tasks))
    except (LookupError, MarkerError) as error:
        parser.error(str(error))
    if not found:
        console.print(f"the solution has no code yet for {', '.join(sorted(tasks))}")
    if args.apply and not args.force:
        passing = tasks_passing(tree, found, console)
        for task in sorted(passing):
            console.print(f"task {task} passes its tests, so your code stays (--force replaces it)")
        found = [item for item in found if item.block.task not in passing]
    for difference in found:
        show(console, tree, difference, args.apply)
    if args.apply:
        for backup in apply(tree, found):
            console.print(f"your previous code is in {display_path(backup)}", soft_wrap=True)
    return 0


def tasks_passing(tree: Path, found: list[Difference], console: Console) -> set[str]:
    """Ids of the tasks in `found` that the learner has solved: edited, and passing the tests."""
    begun = {item.block.task for item in found if item.is_begun and item.mine != item.solution}
    tasks = {task for task in begun if task is not None}
    days = {day_of_task(task).id: day_of_task(task) for task in tasks}
    outcomes = outcomes_by_task(tree, list(days.values()), console)
    return {task for task in tasks if is_done(outcomes.get(task, []))}


def tasks_of(day: Day, number: int | None) -> set[str]:
    """Ids of a day's tasks, or of task `number`; raises `LookupError` if unknown."""
    tasks = {task.id for task in day.tasks if number in (None, task.number)}
    if not tasks:
        known = ", ".join(str(task.number) for task in day.tasks)
        raise LookupError(f"{day.name} has no task {number}; it has {known}")
    return tasks


def differences(tree: Path, tasks: set[str]) -> Iterator[Difference]:
    """Yields the blocks of `tasks`; raises `MarkerError` if one is missing."""
    for path, solution_block in all_blocks(ROOT / "src").values():
        if solution_block.task not in tasks:
            continue
        file = path.relative_to(ROOT)
        mine = tree / file
        if not mine.is_file():
            raise MarkerError(f"{display_path(mine)} is missing; `pdm run start-course` writes it")
        text = mine.read_text(encoding="utf-8")
        blocks = {block.label: block for block in find_blocks(text, display_path(mine))}
        if solution_block.label not in blocks:
            raise MarkerError(
                f"{display_path(mine)} has lost its marker [task {solution_block.label}]; restore "
                f"it and [/task {solution_block.label}] around your code"
            )
        block = blocks[solution_block.label]
        lines = text.split("\n")[block.start : block.end]
        solution_lines = path.read_text(encoding="utf-8").split("\n")
        yield Difference(
            file,
            block,
            lines,
            solution_lines[solution_block.start : solution_block.end],
            _is_begun(lines, file),
        )


def tasks_begun(tree: Path) -> set[str]:
    """Ids of the tasks that the learner has edited; all ids if a block cannot be located."""
    try:
        found = list(differences(tree, set(TASKS)))
    except MarkerError:
        return set(TASKS)
    return {item.block.task for item in found if item.is_begun and item.block.task is not None}


def _is_begun(lines: list[str], file: Path) -> bool:
    """Whether a block has code other than the starter's placeholder."""
    if file.suffix == ".metal":
        return has_code(lines)
    return bool(STARTER.sub("", "\n".join(lines)).strip())


def show(console: Console, tree: Path, difference: Difference, applied: bool) -> None:
    """Prints a block: the solution's code if the learner has not edited the block, else a diff."""
    where = f"{display_path(tree / difference.file)}:{difference.block.start}"
    title = f"[bold]task {difference.block.label}[/] in {where}"
    if difference.mine == difference.solution:
        console.print(f"{title}: identical", soft_wrap=True)
        return
    if difference.is_begun:
        console.print(f"{title}: − yours, + the solution's", soft_wrap=True)
        text = "\n".join(
            list(difflib.unified_diff(difference.mine, difference.solution, n=3, lineterm=""))[2:]
        )
        language = "diff"
    else:
        console.print(f"{title}: {'inserted' if applied else 'the solution'}", soft_wrap=True)
        text = "\n".join(difference.solution)
        language = "python" if difference.file.suffix == ".py" else "cpp"
    # As wide as the longest line, regardless of the terminal, so that no line is cropped.
    width = max(map(len, text.split("\n")), default=0)
    code = Syntax(text, language, background_color="default", code_width=width)
    console.print(code, crop=False, no_wrap=True, overflow="ignore")


def apply(tree: Path, found: list[Difference]) -> list[Path]:
    """Inserts the solution's code; returns backup files of the learner's edits."""
    written = []
    # The last block first, so that the positions of earlier blocks remain valid.
    for difference in sorted(found, key=lambda item: -item.block.start):
        path = tree / difference.file
        if difference.is_begun and difference.mine != difference.solution:
            backup = _new_file(tree / "revealed", difference)
            backup.write_text("\n".join(difference.mine) + "\n", encoding="utf-8")
            written.append(backup)
        lines = path.read_text(encoding="utf-8").split("\n")
        lines[difference.block.start : difference.block.end] = difference.solution
        path.write_text("\n".join(lines), encoding="utf-8")
    return written[::-1]


def _new_file(folder: Path, difference: Difference) -> Path:
    """Unused path such as revealed/1.1.2-linear.py or 1.1.2-linear-2.py."""
    folder.mkdir(exist_ok=True)
    name, suffix = difference.block.label.replace(" ", "-"), difference.file.suffix
    paths = (folder / f"{name}{'' if n == 1 else f'-{n}'}{suffix}" for n in count(1))
    return next(path for path in paths if not path.exists())


def apply_tasks(tree: Path, tasks: set[str]) -> None:
    """Inserts the solution's code for `tasks`; errors as in `differences`."""
    unknown = tasks - TASKS.keys()
    assert not unknown, unknown
    apply(tree, list(differences(tree, tasks)))


if __name__ == "__main__":
    sys.exit(main())
