"""Tests: course exercises by week and day; everything else mirrors src/."""

import pytest

# Assertion rewriting in helper modules, for detailed failure messages.
pytest.register_assert_rewrite("tests.support", "tests.paging", "tests.engine", "tests.metal")
