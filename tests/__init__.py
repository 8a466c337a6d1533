"""Tests: course exercises by week and day; everything else mirrors src/."""

import pytest

# pytest rewrites assertions of helper modules, too.
pytest.register_assert_rewrite("tests.support", "tests.paging", "tests.engine", "tests.metal")
