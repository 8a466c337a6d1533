"""`pdm run hybrid`: tables, with the solution's and the learner's code."""

import pytest

from tests.course.support import run_command, write_tree_with_starter
from tools.course import hybrid_demo

pytestmark = pytest.mark.slow


def test_state_does_not_grow():
    _, *rows = hybrid_demo.memory()
    cells = [row.split() for row in rows]
    assert [row[0] for row in cells] == [str(context) for context in hybrid_demo.CONTEXTS]
    assert len({row[6] for row in cells}) == 1


def test_turns_hit_the_prefix_of_the_previous_prompt():
    _, _, *rows = hybrid_demo.conversation(3)
    counts = [[int(row.split()[i]) for i in (1, 2, 5)] for row in rows]
    previous = 0
    for prompt, without, cached in counts:
        assert without == 0
        assert previous - 16 - hybrid_demo.PAGE_SIZE <= cached <= previous
        previous = prompt


@pytest.mark.parametrize(
    ("module", "table", "day"),
    [
        ("attention/gated_delta.py", "memory", 4),
        ("models/families/gated_delta_net.py", "memory", 4),
        ("engine/scheduling/checkpoints.py", "conversation", 5),
        ("engine/scheduling/state_slots.py", "conversation", 5),
    ],
)
def test_tables_run_the_learner_code(tmp_path, module, table, day):
    """An unwritten `module` makes the command fail with its task's error."""
    tree = write_tree_with_starter(tmp_path / "mine", module)
    done = run_command("tools.course.hybrid_demo", tree, table)
    assert done.returncode == 1, done.stdout
    assert f"week 6, day {day}, task" in done.stderr, done.stderr
    assert "is yours to write" in done.stderr
