"""Optional days: separate counts, and commands on the learner's code."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.course import moe_demo
from tools.course.progress import counts
from tools.course.starter import starter_text
from tools.course.tasks import DAYS, TASKS, day_of
from tools.course.tree import PACKAGE, ROOT, environment
from tools.course.wrong_solutions import write_tree_of
from tools.scoreboard.measure import tasks_shown
from tools.scoreboard.score import format_week

QUESTION = ("--prompt", "What is the capital of France?", "--max-tokens", "12")


def test_optional_tasks_are_counted_separately():
    optional = sum(task.is_optional for task in TASKS.values())
    required = len(TASKS) - optional
    assert counts(DAYS, {"1.1.1", "5.1.1", "5.2.4"}) == [
        f"1 of {required} tasks done",
        f"2 of {optional} optional tasks done",
    ]
    assert counts([day_of(1, 2)], set()) == ["0 of 2 tasks done"]
    assert counts([day_of(5, 1)], {"5.1.2"}) == ["1 of 4 optional tasks done"]


def test_scoreboard_shows_started_optional_tasks():
    required = [task.id for task in TASKS.values() if not task.is_optional]
    assert [task.id for task in tasks_shown(["1.1.1"])] == required
    week_5 = [task.id for task in tasks_shown(["5.2.1"]) if task.id not in required]
    assert week_5 == [task for task in TASKS if task.startswith("5.")]
    assert [task.id for task in tasks_shown(["4.2.3"]) if task.id not in required] == ["4.2.3"]
    assert [format_week(week) for week in ("4", "5")] == ["4", "5 (optional)"]


def main(tree: Path | None, *flags: str) -> subprocess.CompletedProcess[str]:
    solution = "ref" if tree is None else "mine"
    command = [sys.executable, "-m", "tiny_llm.cli.main", "--solution", solution]
    return subprocess.run(
        [*command, "--loader", "engine", *QUESTION, *flags],
        env={**os.environ, **environment(tree)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folder of a mixture-of-experts version of the demo model."""
    path = tmp_path_factory.mktemp("mixture") / "mixture"
    assert moe_demo.main([str(path)]) == 0
    return str(path)


def test_mixture_output_equals_demo_output(folder):
    for model in (folder, "demo"):
        done = main(None, "--model", model)
        assert done.stdout.startswith("The capital of France is Paris."), done.stderr


def test_unrelated_folder_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(SystemExit):
        moe_demo.main([str(tmp_path)])
    assert "exists and is not a checkpoint" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "flags", "day"),
    [
        ("models/families/experts.py", ("--model", "MIXTURE"), 1),
        ("models/families/expert_matmul.py", ("--model", "MIXTURE"), 1),
        ("models/checkpoint/sharding.py", ("--model", "demo", "--tensor-parallel-size", "2"), 2),
        ("models/parallel/layers.py", ("--model", "demo", "--tensor-parallel-size", "2"), 2),
        ("models/parallel/block.py", ("--model", "demo", "--tensor-parallel-size", "2"), 2),
    ],
)
def test_closing_commands_run_the_learner_code(tmp_path, folder, module, flags, day):
    """With one module reset to the starter, they fail with that module's task."""
    path = PACKAGE / module
    text = starter_text((ROOT / path).read_text(encoding="utf-8"), path)
    write_tree_of(tmp_path / "mine", path, text)
    given = [folder if flag == "MIXTURE" else flag for flag in flags]
    done = main(tmp_path / "mine", *given)
    assert done.returncode != 0, done.stdout
    assert f"week 5, day {day}, task" in done.stderr, done.stderr
    assert "is yours to write" in done.stderr
