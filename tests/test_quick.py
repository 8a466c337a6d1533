"""Selection of the test cases of a quick run."""

import itertools
from collections import Counter

from tests.quick import covering_subset, in_share


def test_covering_subset_is_small():
    cases = [
        frozenset({("dtype", dtype), ("shape", shape), ("mask", mask)})
        for dtype, shape, mask in itertools.product(range(3), range(7), range(5))
    ]
    kept = covering_subset(cases, Counter())
    assert set().union(*(cases[number] for number in kept)) == set().union(*cases)
    assert len(kept) == 7, "expected one case per value of the parameter with the most values"


def test_single_parameter_keeps_all_cases():
    cases = [frozenset({("x", value)}) for value in range(5)]
    assert covering_subset(cases, Counter()) == set(range(5))
    assert covering_subset(cases[2:], Counter({("x", 3): 1})) == {0, 2}


def test_shares_of_successive_commits_cover_all_combinations():
    kinds = "slow", "thorough", "other_isa"
    cases = [(f"tests/a.py::test_a[{n}]", {kinds[n % 3]}) for n in range(40)]
    shares = [in_share(cases, 4, commit) for commit in (7, 8, 9, 10)]
    assert [sum(selections) for selections in zip(*shares, strict=True)] == [1] * 40
    assert [sum(share) for share in shares] == [10] * 4
    assert all(in_share([("tests/a.py::test_b", {"parametrize"})], 4, n)[0] for n in range(4))


def test_cases_with_the_same_build_are_in_one_share():
    name = "tests/course/test_days.py::test_cpp_mistake_is_caught[4.5.{}]"
    mistakes = [(name.format(n), {"slow"}) for n in range(9)]
    assert sum(in_share(mistakes, 4, 0)) in (0, len(mistakes))


def test_no_cases():
    assert covering_subset([], Counter()) == set()
