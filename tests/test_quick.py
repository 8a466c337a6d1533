"""Which cases a quick run takes: tests/quick.py."""

import itertools

from tests.quick import covering_subset


def test_of_a_product_each_value_comes_and_few_cases_do():
    cases = [
        frozenset({("dtype", dtype), ("shape", shape), ("mask", mask)})
        for dtype, shape, mask in itertools.product(range(3), range(7), range(5))
    ]
    kept = covering_subset(cases)
    assert set().union(*(cases[number] for number in kept)) == set().union(*cases)
    assert len(kept) == 7, "as many as the longest parameter has values"


def test_of_one_parameter_all_cases_are_taken():
    assert covering_subset([frozenset({("x", value)}) for value in range(5)]) == set(range(5))


def test_of_no_cases_none():
    assert covering_subset([]) == set()
