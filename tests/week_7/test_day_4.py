"""Week 7, day 4, optional: forking runs, selection, voting and shared pages."""

from pathlib import Path
from typing import Any

import pytest

from tests.support import assert_equal
from tests.week_7.support import total_is_12
from tiny_llm.agent import Agent, ScriptedModel, Tool, Transcript, assistant
from tiny_llm.agent.branches import Branch, count_pages, fork, passes, select, vote
from tiny_llm.engine.execution.sampler import completion_seed

NO_ARGUMENTS: dict[str, Any] = {"properties": {}, "required": []}


def start_run(folder: Path) -> tuple[Transcript, Path]:
    """A run after its first step, and a workspace with two files."""
    workspace = folder / "run"
    (workspace / "notes").mkdir(parents=True)
    (workspace / "total.txt").write_text("7")
    (workspace / "notes" / "a.txt").write_text("old")
    agent = Agent(ScriptedModel([assistant("", ("look", {}))]), [look_tool()])
    transcript = agent.start("Add 5 to the total.")
    agent.step(transcript)
    return transcript, workspace


def look_tool() -> Tool:
    return Tool("look", "Looks.", NO_ARGUMENTS, lambda: "7")


def branch_with(
    folder: Path, text: str | None = None, steps: int = 2, answer: str | None = "Done."
) -> Branch:
    """Branch with `text` in total.txt; without an answer, it hit the step limit."""
    workspace = folder / f"workspace_{len(list(folder.iterdir()))}"
    workspace.mkdir()
    if text is not None:
        (workspace / "total.txt").write_text(text)
    reason = "max_steps" if answer is None else "answer"
    messages = [{"role": "user", "content": "Add."}, assistant(answer)]
    return Branch(Transcript(messages, messages, steps, reason), workspace, 0)


def assert_chosen(
    branches: list[Branch], chosen: Branch | None, expected: int | None, what: str = ""
) -> None:
    number = None if chosen is None else [branch is chosen for branch in branches].index(True)
    assert number == expected, f"{what}expected branch {expected}, got {number}"


def test_task_1_branches_start_from_the_run(tmp_path):
    transcript, workspace = start_run(tmp_path)
    branches = fork(transcript, workspace, 3, tmp_path)
    assert len(branches) == 3, f"expected 3 branches, got {len(branches)}"
    for number, branch in enumerate(branches):
        where = branch.workspace.relative_to(tmp_path).as_posix()
        assert where == f"branch_{number}", f"expected the workspace branch_{number}, got {where}"
        assert branch.transcript == transcript, f"branch {number}: expected the run's messages"
        files = {p.name: p.read_text() for p in branch.workspace.rglob("*.txt")}
        assert files == {"total.txt": "7", "a.txt": "old"}, f"expected the run's files, got {files}"


def test_task_1_branches_are_separate(tmp_path):
    transcript, workspace = start_run(tmp_path)
    length = len(transcript.messages)
    first, second = fork(transcript, workspace, 2, tmp_path)
    first.transcript.append(assistant("12"))
    lengths = [len(one.messages) for one in (transcript, first.transcript, second.transcript)]
    expected = [length, length + 1, length]
    assert lengths == expected, f"expected {expected} messages in run and branches, got {lengths}"
    (first.workspace / "notes" / "a.txt").write_text("new")
    folders = (workspace, first.workspace, second.workspace)
    texts = [(folder / "notes" / "a.txt").read_text() for folder in folders]
    assert_equal(texts, ["old", "new", "old"], "a change in branch 0, not in the run or branch 1")


def test_task_1_seeds(tmp_path):
    transcript, workspace = start_run(tmp_path)
    seeds = []
    for seed in (0, 1):
        (tmp_path / str(seed)).mkdir()
        branches = fork(transcript, workspace, 4, tmp_path / str(seed), seed)
        seeds += [branch.seed for branch in branches]
    assert len(set(seeds)) == 8, f"expected 8 different seeds, got {len(set(seeds))}"
    expected = [completion_seed(seed, number) for seed in (0, 1) for number in range(4)]
    assert seeds == expected, f"expected the seeds of `completion_seed`, got {seeds}"


def test_task_1_branches_run_independently(tmp_path):
    """Answers depend on the branch's seed; each branch has its own workspace."""
    transcript, workspace = start_run(tmp_path)

    def make_agent(folder: Path) -> Agent:
        def add() -> str:
            total = int((folder / "total.txt").read_text()) + 5
            (folder / "total.txt").write_text(str(total))
            return str(total)

        def script(messages: Any, seed: int) -> Any:
            if messages[-1]["content"] == "7":
                return assistant(None, ("add", {}))
            return assistant(f"{messages[-1]['content']}, says {seed}.")

        return Agent(ScriptedModel(script), [look_tool(), Tool("add", "Adds.", NO_ARGUMENTS, add)])

    branches = fork(transcript, workspace, 2, tmp_path)
    for branch in branches:
        branch.run(make_agent)
    answers = [branch.transcript.answer for branch in branches]
    expected = [f"12, says {branch.seed}." for branch in branches]
    assert answers == expected, f"expected {expected}, got {answers}"
    assert (workspace / "total.txt").read_text() == "7", "expected the run's file to be unchanged"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("12", True), ("13", False), (None, False), ("twelve", False)],
    ids=["right", "wrong", "no file", "no number"],
)
def test_task_2_check_of_files(tmp_path, text, expected):
    branch = branch_with(tmp_path, text)
    try:
        actual = passes(total_is_12, branch.workspace)
    except (OSError, ValueError) as error:
        pytest.fail(f"expected False, got {error!r}")
    assert actual is expected, f"total.txt has {text!r}: expected {expected}, got {actual}"


def test_task_2_bug_in_the_check_is_raised(tmp_path):
    """A typo in the check must not silently fail every branch."""
    with pytest.raises(NameError):
        passes(lambda workspace: workspase.exists(), tmp_path)  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("texts", "steps", "expected"),
    [
        (["7", "12", "13"], [2, 2, 2], 1),
        (["12", "12", "12"], [4, 2, 3], 1),
        (["7", "12", "12"], [1, 3, 3], 1),
        (["7", None, "x"], [1, 2, 3], None),
        ([], [], None),
    ],
    ids=["one passes", "fewest steps", "first of equals", "none", "no branches"],
)
def test_task_2_selection(tmp_path, texts, steps, expected):
    branches = [branch_with(tmp_path, *pair) for pair in zip(texts, steps, strict=True)]
    assert_chosen(branches, select(branches, total_is_12), expected)


def test_task_2_files_decide_not_answers(tmp_path):
    branches = [
        branch_with(tmp_path, "7", 1, "The total is now 12."),
        branch_with(tmp_path, "12", 9, None),  # hit the step limit, so has no answer
    ]
    assert_chosen(branches, select(branches, total_is_12), 1)


VOTES = {
    "most frequent": (["12", "13", "13"], 1),
    "period and spaces": (["11", "12.", " 12", "It is 12"], 1),
    "space before the period": (["11", "12", "12 ."], 1),
    "case": (["no", "Twelve men", "twelve MEN"], 1),
    "inner spaces": (["no", "twelve men", "twelve  men"], 1),
    "tie": (["13", "12", "12", "13"], 0),
    "branches without an answer": ([None, None, None, "12", "12"], 3),
    "one answer": ([None, "7"], 1),
    "no answers": ([None, None], None),
    "no branches": ([], None),
}


@pytest.mark.parametrize(("answers", "expected"), VOTES.values(), ids=VOTES)
def test_task_3_vote(tmp_path, answers, expected):
    branches = [branch_with(tmp_path, answer=answer) for answer in answers]
    assert_chosen(branches, vote(branches), expected, f"answers {answers}: ")


@pytest.mark.parametrize(
    ("pages", "expected"),
    [
        ([[0, 1, 2], [0, 1, 3]], (4, 2, 2)),
        ([[5, 6], [5, 6], [5, 9]], (3, 2, 3)),
        ([[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]], (4, 4, 8)),
        ([[0, 1], [2, 3]], (4, 0, 0)),
        ([[3, 1, 4]], (3, 0, 0)),
        ([[0], []], (1, 0, 0)),
        ([[0, 1, 2], [0, 1, 3], [0, 4, 5]], (6, 2, 3)),
        ([], (0, 0, 0)),
    ],
    ids=str,
)
def test_task_4_page_counts(pages, expected):
    counts = count_pages(pages)
    assert_equal(tuple(counts), expected, f"(stored, shared, saved) = {expected}")
    assert_equal((counts.stored, counts.shared, counts.saved), expected, "fields in this order")
