"""Selection of test cases for quick runs (`pdm run test` without `--all`).

Many tests are parametrized over all combinations of shapes, dtypes, masks and instruction sets. A
quick run covers each value of each parameter at least once, but not every combination. The other
cases are marked `thorough` and run with `pdm run test --all` or if the command names their file.

Instruction sets between portable C++ and this machine's best have a separate mark, `other_isa`:
sanitizer runs use few cases, but all instruction sets.
"""

import re
import subprocess
import zlib
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence, Set
from pathlib import Path

import pytest

# For every value of these parameters, a quick run covers all values of the other parameters.
REPEATED = ("instruction_set",)

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
    "tests/models/test_demo.py",
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
    functions: dict[tuple[str, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if getattr(item, "callspec", None) is not None:
            if is_recompiled(item):
                item.add_marker(pytest.mark.thorough)
                continue
            repeated = [str(item.callspec.params.get(name)) for name in REPEATED]
            functions[(item.nodeid.partition("[")[0], *repeated)].append(item)
    for cases in functions.values():
        cases = [case for case in cases if case.get_closest_marker("slow") is None]
        selected = covering_subset([param_values(case) for case in cases])
        for number in set(range(len(cases))) - selected:
            cases[number].add_marker(pytest.mark.thorough)


def is_recompiled(item: pytest.Item) -> bool:
    """Whether the case recompiles a Metal kernel for a checking mode."""
    kernels = ("tests/metal/", "tests/metal_emulator/test_mlx_kernels.py")
    return item.nodeid.startswith(kernels) and item.callspec.params.get("mode", "plain") != "plain"


def param_values(item: pytest.Item) -> frozenset[tuple[Hashable, ...]]:
    """Hashable parameter values of a case.

    The arguments of one `parametrize` count as one value. Values are compared by identity, since
    all cases of a function share the same objects.
    """
    params = item.callspec.params
    group = {name: name for name in params}
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        group |= dict.fromkeys(names, names[0])
    values = defaultdict(list)
    for name, value in params.items():
        values[group[name]].append(id(value))
    return frozenset((name, *value) for name, value in values.items())


def covering_subset(cases: Sequence[Set[Hashable]]) -> set[int]:
    """Indices of a small subset that covers every value of every parameter.

    Greedy: each step adds the case with the most uncovered values; among equals, the one whose
    values were used least.
    """
    used: Counter[Hashable] = Counter()
    missing = {value for case in cases for value in case}
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


def in_share(nodeid: str, marks: Set[str], shares: int, commit: int) -> bool:
    """Whether a commit's share includes a case; every share has the quick tests."""
    if not marks & {"slow", "thorough", "other_isa"}:
        return True
    shared = BUILT_TOGETHER.match(nodeid)
    return (zlib.crc32((shared[0] if shared else nodeid).encode()) + commit) % shares == 0


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
