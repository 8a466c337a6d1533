"""Selection of the cases of a quick run."""

import itertools

from tests.quick import covering_subset, in_share


def test_product_is_covered_by_few_cases():
    cases = [
        frozenset({("dtype", dtype), ("shape", shape), ("mask", mask)})
        for dtype, shape, mask in itertools.product(range(3), range(7), range(5))
    ]
    kept = covering_subset(cases)
    assert set().union(*(cases[number] for number in kept)) == set().union(*cases)
    assert len(kept) == 7, "one case per value of the longest parameter"


def test_single_parameter_keeps_all_cases():
    assert covering_subset([frozenset({("x", value)}) for value in range(5)]) == set(range(5))


def test_shares_of_successive_commits_cover_all_combinations():
    marks = {f"test_a[{n}]": {"thorough" if n % 2 else "other_isa"} for n in range(40)}
    shares = [
        {nodeid for nodeid in marks if in_share(nodeid, marks[nodeid], 4, n)} for n in (7, 8, 9, 10)
    ]
    assert set().union(*shares) == set(marks)
    assert sum(len(share) for share in shares) == len(marks), "each case is in exactly one share"
    assert all(in_share("test_b", {"slow"}, 4, commit) for commit in range(4))


def test_no_cases():
    assert covering_subset([]) == set()
