"""Selection of test cases for quick runs (`pdm run test` without `--all`).

Many tests are parametrized over all combinations of shapes, dtypes, masks and instruction sets. A
quick run covers each value of each parameter at least once, and in each file each kernel:
operation, dtype, bits and mask on each instruction set. The other cases are marked `thorough` and
run with `pdm run test --all` or if the command names their file.

Instruction sets between portable C++ and this machine's best have a separate mark, `other_isa`:
sanitizer runs use few cases, but all instruction sets.
"""

import re
import subprocess
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence, Set
from pathlib import Path

import pytest

# Parameters that select a kernel on an instruction set.
OF_KERNELS = ("dtype", "half", "bits", "mask", "kernel")

# Longest first: a long file started last would leave the other workers idle.
LONGEST_FIRST = (
    "tests/course/test_days.py",
    "tests/course/test_wrong_solutions.py",
    "tests/models/test_parity_transformers.py",
    "tests/models/test_layouts.py",
    "tests/course/test_commands.py",
    "tests/metal",
    "tests/engine",
    "tests/week_3/test_day_5.py",
    "tests/week_2",
    "tests/ops",
    "tests/cli",
    "tests/metal_emulator",
)

# Cases that need the same build of an extension are in the same share: faults in Metal host code,
# and a day's C++ mistakes.
BUILT_TOGETHER = re.compile(
    r"tests/metal/test_host_faults\.py|tests/course/test_days\.py::test_cpp\w+\[\d+\.\d+"
)


def mark_thorough(items: Sequence[pytest.Item]) -> None:
    """Marks the cases that a quick run omits."""
    files: dict[str, dict[str, list[pytest.Item]]] = defaultdict(lambda: defaultdict(list))
    for item in items:
        if getattr(item, "callspec", None) is None:
            continue
        if is_recompiled(item):
            item.add_marker(pytest.mark.thorough)
        elif item.get_closest_marker("slow") is None:
            function = item.nodeid.partition("[")[0]
            files[function.partition("::")[0]][function].append(item)
    for functions in files.values():
        used: Counter[Hashable] = Counter()
        # The other instruction sets last: a quick run must cover all values without them.
        for is_other in (False, True):
            for function, items in functions.items():
                cases = [
                    case
                    for case in items
                    if (case.get_closest_marker("other_isa") is not None) == is_other
                ]
                selected = covering_subset([to_cover(case, function) for case in cases], used)
                for number in set(range(len(cases))) - selected:
                    cases[number].add_marker(pytest.mark.thorough)


def is_recompiled(item: pytest.Item) -> bool:
    """Whether the case recompiles a Metal kernel for a checking mode."""
    kernels = ("tests/metal/", "tests/metal_emulator/test_mlx_kernels.py")
    return item.nodeid.startswith(kernels) and item.callspec.params.get("mode", "plain") != "plain"


def to_cover(item: pytest.Item, function: str) -> frozenset[Hashable]:
    """What a case covers: values of its function's parameters, and a kernel of its file.

    The arguments of one `parametrize` count as one value, except those that select a kernel. Values
    are compared by identity, since all cases of a file share the same objects.
    """
    params = item.callspec.params
    group = {name: name for name in params}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        group |= dict.fromkeys(names, names[0])
    values = defaultdict(list)
    for name, value in params.items():
        values[group[name]].append((name, id(value)))
    covered: set[Hashable] = set()
    for together in values.values():
        if any(name in OF_KERNELS for name, _ in together):
            covered.add((params.get("instruction_set"), *together))
            covered |= {(function, value) for value in together}
        else:
            covered.add((function, *together))
    return frozenset(covered)


def covering_subset(cases: Sequence[Set[Hashable]], used: Counter[Hashable]) -> set[int]:
    """Indices of a small subset that covers every value that `used` lacks; updates `used`.

    Greedy: each step adds the case with the most uncovered values; among equals, the one whose
    values were used least.
    """
    missing = {value for case in cases for value in case} - used.keys()
    selected: set[int] = set()
    while missing:
        best = max(
            (number for number in range(len(cases)) if number not in selected),
            key=lambda number: (
                len(missing & cases[number]),
                -sum(used[value] for value in cases[number]),
            ),
        )
        selected.add(best)
        used.update(cases[best])
        missing -= cases[best]
    return selected


def in_share(cases: Iterable[tuple[str, Set[str]]], shares: int, commit: int) -> list[bool]:
    """Whether a commit's share includes each case, given by node id and marks.

    Every share has the quick tests. The others of a file are dealt out in turn, since neighbors
    take similarly long.
    """
    turns: dict[str, dict[str, int]] = defaultdict(dict)
    included = []
    for nodeid, marks in cases:
        if not marks & {"slow", "thorough", "other_isa"}:
            included.append(True)
            continue
        shared = BUILT_TOGETHER.match(nodeid)
        file = nodeid.partition("::")[0]
        turn = turns[file].setdefault(shared[0] if shared else nodeid, len(turns[file]))
        included.append((zlib.crc32(file.encode()) + turn + commit) % shares == 0)
    return included


def commit_number() -> int:
    """Number of commits of this checkout; 0 without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-list", "--count", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return 0
    return int(done.stdout) if done.returncode == 0 else 0


def longest_first(items: list[pytest.Item]) -> None:
    """Sorts files by duration, longest first; keeps the order within a file."""

    def rank(item: pytest.Item) -> int:
        matches = (n for n, path in enumerate(LONGEST_FIRST) if item.nodeid.startswith(path))
        return next(matches, len(LONGEST_FIRST))

    items.sort(key=rank)
