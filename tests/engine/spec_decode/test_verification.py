"""Verification accepts the longest draft prefix that the target samples."""

import pytest

from tiny_llm.engine.spec_decode.verification import accepted_tokens


@pytest.mark.parametrize(
    ("drafts", "sampled", "expected"),
    [
        ([], [5], [5]),
        ([1, 2, 3], [9, 2, 3, 4], [9]),
        ([1, 2, 3], [1, 9, 3, 4], [1, 9]),
        ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]),
    ],
)
def test_accepted_tokens(drafts, sampled, expected):
    assert accepted_tokens(drafts, sampled) == expected
