"""Case selection of quick runs."""

import itertools

from tests.quick import covering_subset


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


def test_no_cases():
    assert covering_subset([]) == set()
