"""The whole course day by day, with the solution's code.

Generates and builds the starter, where every task's tests fail with an error that names the task.
Then applies the solution day by day: after each day, exactly the tests up to that day pass.
Finally applies each C++ mistake of `wrong/` to the solved source tree: the tests of its task must
fail.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.course.support import HAVE_CODE, assert_caught, wrong_solution_params
from tests.course.wrong import WRONG
from tools.course.build import LESS_OPTIMIZED, build_tree, built_module
from tools.course.reveal import apply_tasks
from tools.course.runner import Outcome, Runner
from tools.course.start import write_tree
from tools.course.tasks import DAYS, TASKS, Day, with_needs
from tools.course.tree import EXTENSION
from tools.course.wrong_solutions import INTERPRETED, run_compiled, suffix_of

pytestmark = pytest.mark.slow

# Excluded: full generations, which take minutes with a learner's kernels (plain loops), and
# exhaustive parameter combinations, which the solution's own test run covers.
QUICK = ("-m", "not (slow or thorough)", "--tb=line")

CHAPTERS = [day for day in DAYS if any(task.id in HAVE_CODE for task in day.tasks)]


class Course:
    """A learner's source tree, partway from starter to solution.

    Attributes:
        done: tasks with the solution applied.
    """

    def __init__(self, tree: Path, runner: Runner):
        self.tree = tree
        self.runner = runner
        self.done: set[str] = set()
        self.built: dict[Path, bytes] = {}
        write_tree(tree)

    def apply(self, tasks: set[str]) -> None:
        """Applies the solution and builds the extension unless it is up to date."""
        apply_tasks(self.tree, tasks - self.done)
        self.done |= tasks
        if self.sources() == self.built:
            return
        errors = build_tree(self.tree, *LESS_OPTIMIZED)
        assert errors is None, f"the learner's extension does not build:\n{errors}"
        assert built_module(self.tree) is not None
        self.built = self.sources()

    def sources(self) -> dict[Path, bytes]:
        files = (path for path in (self.tree / EXTENSION).rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Course]:
    with Runner() as runner:
        yield Course(tmp_path_factory.mktemp("course") / "mine", runner)


def by_task(outcomes: list[Outcome]) -> dict[str, list[Outcome]]:
    crashed = [outcome.message for outcome in outcomes if not outcome.test]
    assert not crashed, f"the test process crashed:\n{crashed[0]}"
    found: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        assert outcome.task is not None, f"{outcome.test} belongs to no task"
        found[outcome.task].append(outcome)
    return found


def assert_unwritten(course: Course, days: Iterable[Day], when: str, *options: str) -> None:
    """Asserts that tests of the days' unwritten tasks fail with an error that names the task."""
    days = list(days)
    tasks = {task.id for day in days for task in day.tasks} & HAVE_CODE - course.done
    if not tasks:
        return
    found = by_task(
        course.runner.run(course.tree, [day.test_file for day in days], *options, *QUICK)
    )
    for task in sorted(tasks):
        failed = [outcome for outcome in found[task] if outcome.passed is False]
        assert failed, f"{when}, all tests of the unwritten task {task} pass"
        for outcome in failed:
            assert outcome.is_unwritten, (
                f"{when}, {outcome.test}: expected an unwritten task's error, "
                f"got: {outcome.message}"
            )


FIRST_CASES = ("-p", "tools.course.pytest_first_case")


def test_starter_tasks_fail_with_their_error(course, exhaustive):
    course.apply(set())
    assert_unwritten(course, CHAPTERS, "in the starter", *(() if exhaustive else FIRST_CASES))


@pytest.mark.parametrize("day", CHAPTERS, ids=lambda day: day.id)
def test_exactly_the_finished_days_pass(course, day):
    order = [chapter.id for chapter in DAYS]
    chapters = DAYS[: order.index(day.id) + 1]
    so_far = {task.id for chapter in chapters for task in chapter.tasks} & HAVE_CODE
    course.apply(with_needs(so_far) & HAVE_CODE)
    found = by_task(course.runner.run(course.tree, [day.test_file], *QUICK))
    for task in course.done & found.keys():
        for outcome in found[task]:
            assert outcome.passed is not False, (
                f"after {day.name}, {outcome.test} ({TASKS[task].title}): {outcome.message}"
            )
    # Of the unwritten tasks, only those of the next day must fail here, so that a task that passes
    # too early is reported once.
    following = CHAPTERS[CHAPTERS.index(day) + 1 :][:1]
    assert_unwritten(course, following, f"after {day.name}", *FIRST_CASES)


@pytest.mark.parametrize(
    "wrong",
    wrong_solution_params([wrong for wrong in WRONG if suffix_of(wrong) not in INTERPRETED], 1),
)
def test_cpp_mistake_is_caught(course, wrong):
    course.apply(HAVE_CODE)  # no-op if test_exactly_the_finished_days_pass has run
    assert_caught(wrong, run_compiled(course.runner, course.tree, wrong, "-x"))
