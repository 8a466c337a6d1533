"""Result cache: changes that make a day's tests run again."""

import pytest

from tools.course.result_cache import hash_inputs
from tools.course.tasks import DAYS


@pytest.mark.parametrize("day", DAYS, ids=lambda day: day.id)
def test_a_built_extension_invalidates_the_days_that_use_it(tmp_path, day):
    (tmp_path / "src" / "extensions").mkdir(parents=True)
    (tmp_path / "src" / "tiny_llm").mkdir()
    before = hash_inputs(tmp_path, day)
    package = tmp_path / "build" / "package" / "tiny_llm_ext"
    package.mkdir(parents=True)
    (package / "_ext.so").write_bytes(b"compiled")
    has_changed = hash_inputs(tmp_path, day) != before
    assert has_changed == ((day.week, day.day) >= (1, 7)), "only later days use the extension"
