"""The whole course day by day, with the solution's code.

Generates and builds the starter, where every task's tests fail with an error that names the task.
Then applies the solution day by day: after each day, exactly the tests up to that day pass.
Finally applies each C++ mistake of `wrong/` to the solved source tree: the tests of its task must
fail.
"""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.course.support import HAVE_CODE, assert_caught, wrong_solution_params
from tests.course.wrong import WRONG
from tools.course.build import LESS_OPTIMIZED, build_tree, built_module
from tools.course.reveal import apply_tasks
from tools.course.runner import Outcome, Runner
from tools.course.start import write_tree
from tools.course.tasks import DAYS, TASKS, with_needs
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
        sample_tests: two failing tests per task in the starter: a case of the task's first test
            function and a case of its last one.
    """

    def __init__(self, tree: Path, runner: Runner):
        self.tree = tree
        self.runner = runner
        self.done: set[str] = set()
        self.sample_tests: dict[str, list[str]] = {}
        write_tree(tree)
        self.build()

    def build(self) -> None:
        errors = build_tree(self.tree, *LESS_OPTIMIZED)
        assert errors is None, f"the learner's extension does not build:\n{errors}"
        assert built_module(self.tree) is not None

    def apply(self, tasks: set[str]) -> None:
        """Applies the solution and rebuilds the extension if its sources changed."""
        before = self.sources()
        apply_tasks(self.tree, tasks - self.done)
        self.done |= tasks
        if self.sources() != before:
            self.build()

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


# Runs in every share, because other tests use the failing cases that this test collects.
@pytest.mark.every_share
def test_starter_tasks_fail_with_their_error(course, exhaustive):
    files = [day.test_file for day in CHAPTERS]
    first_cases = () if exhaustive else ("-p", "tools.course.pytest_first_case")
    found = by_task(course.runner.run(course.tree, files, *first_cases, *QUICK))
    for task in sorted(HAVE_CODE):
        failed = [outcome for outcome in found[task] if outcome.passed is False]
        assert failed, f"all tests of task {task} pass in the starter"
        for outcome in failed:
            assert outcome.is_unwritten, (
                f"{outcome.test}: expected an unwritten task's error, got: {outcome.message}"
            )
        functions = {outcome.test.partition("[")[0]: outcome.test for outcome in failed}
        tests = list(functions.values())
        course.sample_tests[task] = list(dict.fromkeys([tests[0], tests[-1]]))


@pytest.mark.parametrize("day", CHAPTERS, ids=lambda day: day.id)
def test_exactly_the_finished_days_pass(course, day):
    assert course.sample_tests, (
        "the sample tests are missing; run test_starter_tasks_fail_with_their_error first"
    )
    order = [chapter.id for chapter in DAYS]
    so_far = {
        task.id
        for chapter in DAYS[: order.index(day.id) + 1]
        for task in chapter.tasks
        if task.id in HAVE_CODE
    }
    course.apply(with_needs(so_far) & HAVE_CODE)
    # Of the unwritten tasks, only those of the next day must fail here, so that a task that passes
    # too early is reported once.
    following = CHAPTERS[CHAPTERS.index(day) + 1 :][:1]
    later = sorted({task.id for one in following for task in one.tasks} & HAVE_CODE - course.done)
    tests = [test for task in later for test in course.sample_tests[task]]
    found = by_task(course.runner.run(course.tree, [day.test_file, *tests], *QUICK))
    for task in course.done & found.keys():
        for outcome in found[task]:
            assert outcome.passed is not False, (
                f"after {day.name}, {outcome.test} ({TASKS[task].title}): {outcome.message}"
            )
    for task in later:
        failed = [outcome for outcome in found[task] if outcome.passed is False]
        assert failed, f"after {day.name}, all tests of the unwritten task {task} pass"
        for outcome in failed:
            assert outcome.is_unwritten, (
                f"after {day.name}, {outcome.test}: expected an unwritten task's error, "
                f"got: {outcome.message}"
            )


@pytest.mark.parametrize(
    "wrong",
    wrong_solution_params([wrong for wrong in WRONG if suffix_of(wrong) not in INTERPRETED], 1),
)
def test_cpp_mistake_is_caught(course, wrong):
    course.apply(HAVE_CODE)  # no-op if test_exactly_the_finished_days_pass has run
    assert_caught(wrong, run_compiled(course.runner, course.tree, wrong, "-x"))
