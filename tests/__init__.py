"""The tests: by week and day what a learner's tree must do, and by part of the project the rest."""

import pytest

# What a helper's `assert` compared is told as if it were in a test.
pytest.register_assert_rewrite("tests.support", "tests.paging", "tests.engine", "tests.metal")
