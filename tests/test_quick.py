"""Selection of the test cases of a quick run."""

import itertools
from collections import Counter
from types import SimpleNamespace

from tests.quick import covering_subset, in_share, mark_thorough


def test_covering_subset_is_small():
    cases = [
        frozenset({("dtype", dtype), ("shape", shape), ("mask", mask)})
        for dtype, shape, mask in itertools.product(range(3), range(7), range(5))
    ]
    kept = covering_subset(cases, Counter())
    assert set().union(*(cases[number] for number in kept)) == set().union(*cases)
    assert len(kept) == 7, "expected one case per value of the parameter with the most values"

    # All cases of a single parameter are kept.
    cases = [frozenset({("x", value)}) for value in range(5)]
    assert covering_subset(cases, Counter()) == set(range(5))
    assert covering_subset(cases[2:], Counter({("x", 3): 1})) == {0, 2}
    assert covering_subset([], Counter()) == set()


class Case:
    """The part of a pytest item that `mark_thorough` reads."""

    def __init__(self, function: str, **params: object) -> None:
        self.nodeid = f"tests/a.py::{function}[…]"
        self.callspec = SimpleNamespace(params=params)
        self.is_thorough = False

    def iter_markers(self, name: str) -> tuple[()]:
        return ()

    def get_closest_marker(self, name: str) -> bool | None:
        is_other = self.callspec.params["instruction_set"] == "avx2"
        return True if name == "other_isa" and is_other else None

    def add_marker(self, mark: object) -> None:
        self.is_thorough = True


def test_a_file_covers_each_kernel_on_each_instruction_set():
    isas, dtypes, bits = ("portable", "avx2", "amx"), ("float16", "bfloat16", "float32"), (4, 8)
    functions = "test_a", "test_b"
    cases = [
        Case(function, instruction_set=isa, dtype=dtype, bits=b)
        for function, isa, dtype, b in itertools.product(functions, isas, dtypes, bits)
    ]
    mark_thorough(cases)
    kept = [(case.nodeid, *case.callspec.params.values()) for case in cases if not case.is_thorough]
    assert {one[1:3] for one in kept} == set(itertools.product(isas, dtypes))
    assert {(isa, b) for _, isa, _, b in kept} == set(itertools.product(isas, bits))
    quick = [one for one in kept if "test_b" in one[0] and one[1] != "avx2"]
    assert [set(values) for values in list(zip(*quick, strict=True))[2:]] == [{*dtypes}, {*bits}]
    assert len(kept) == 13, "expected each kernel in one function, and few cases of the other"


def test_shares_of_successive_commits_cover_all_combinations():
    kinds = "slow", "thorough", "other_isa"
    cases = [(f"tests/a.py::test_a[{n}]", {kinds[n % 3]}) for n in range(40)]
    shares = [in_share(cases, 4, commit) for commit in (7, 8, 9, 10)]
    assert [sum(selections) for selections in zip(*shares, strict=True)] == [1] * 40
    assert [sum(share) for share in shares] == [10] * 4
    assert all(in_share([("tests/a.py::test_b", {"parametrize"})], 4, n)[0] for n in range(4))
    # Cases with the same build are in one share.
    name = "tests/course/test_days.py::test_cpp_mistake_is_caught[4.5.{}]"
    mistakes = [(name.format(n), {"slow"}) for n in range(9)]
    assert sum(in_share(mistakes, 4, 0)) in (0, len(mistakes))
