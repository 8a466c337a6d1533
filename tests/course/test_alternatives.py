"""Other correct solutions than ours, which the tests must accept."""

import pytest

from tests.course.support import write_tree_with_starter
from tools.course.markers import find_blocks
from tools.course.runner import Runner
from tools.course.tasks import day_of

# Day 2.1's first cache: each token copies the history.
CONCATENATING = {
    "2.1.1 fetch": "keys, values, (S, *_) = self.append(key, value)\nreturn keys, values, S, mask",
    "2.1.1 append": """
if self.key_values is not None:
    key = mx.concatenate([self.key_values[0], key], axis=2)
    value = mx.concatenate([self.key_values[1], value], axis=2)
self._keys, self._values, self.offset = key, value, key.shape[2]
return key, value, [self.offset] * key.shape[0]
""",
    "2.1.1 rewind": "self.offset -= n",
    "2.1.1 release": "self.offset, self._keys, self._values = 0, None, None",
}


@pytest.mark.slow
def test_day_2_1_accepts_a_cache_by_concatenation(tmp_path):
    tree = write_tree_with_starter(tmp_path / "mine", "kv_cache/full.py")
    file = tree / "src" / "tiny_llm" / "kv_cache" / "full.py"
    lines = file.read_text().split("\n")
    for block in reversed(find_blocks(file.read_text(), file)):
        if block.label in CONCATENATING:
            code = CONCATENATING[block.label].strip().split("\n")
            lines[block.start : block.end] = [f"        {line}" for line in code]
    file.write_text("\n".join(lines))
    with Runner() as runner:
        outcomes = runner.run(tree, [day_of(2, 1).test_file], "-m", "not slow", "--tb=short")
    for outcome in outcomes:
        if outcome.task != "2.1.5":
            assert outcome.passed, f"{outcome.test}: {outcome.message}"
    in_place = [outcome for outcome in outcomes if "appending_writes_in_place" in outcome.test]
    assert in_place
    assert not any(outcome.passed for outcome in in_place), "task 5 must reject the copies"
