"""Command lines of start-course, reveal and progress; `--solution mine`."""

import os
from pathlib import Path

import pytest

from tests.course.support import run_python as run
from tools import run_tests
from tools.course import build, progress, pytest_summary, reveal, start
from tools.course.build import is_stale
from tools.course.progress import state
from tools.course.runner import Outcome, Runner
from tools.course.solution_flag import selected_tree
from tools.course.tasks import TASKS
from tools.course.tree import EXTENSION, ROOT


@pytest.mark.slow
def test_start_course_overwrites_only_with_force(tree, capsys):
    file = tree / "src" / "tiny_llm" / "basics.py"
    file.write_text("mine")
    assert start.main([str(tree)]) == 2
    assert "has your work" in capsys.readouterr().err
    assert file.read_text() == "mine"
    assert start.main([str(tree), "--force"]) == 0
    assert "is yours to write" in file.read_text()


def test_start_course_rejects_unrelated_folders(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("years of work")
    assert start.main([str(tmp_path), "--force"]) == 2
    assert "not a learner's tree" in capsys.readouterr().err
    for folder in (ROOT, ROOT / "src", ROOT / "src" / "tiny_llm", ROOT.parent):
        assert start.main([str(folder), "--force"]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_learner_modules_shadow_the_solution(tree):
    program = (
        "import tiny_llm, tiny_llm.basics, tiny_llm.models.hub, tiny_llm.models.families.experts;"
        "print(tiny_llm.basics.__file__, tiny_llm.models.families.experts.__file__);"
        "print(tiny_llm.models.hub.__file__, tiny_llm.softmax.__module__)"
    )
    basics, experts, hub, module = run(tree, "-c", program).stdout.split()
    assert Path(basics) == tree / "src" / "tiny_llm" / "basics.py"
    assert Path(experts) == tree / "src" / "tiny_llm" / "models" / "families" / "experts.py"
    assert Path(hub) == ROOT / "src" / "tiny_llm" / "models" / "hub.py"
    assert module == "tiny_llm.basics"
    assert str(tree) not in run(None, "-c", program).stdout, "expected the solution without a tree"


def test_unbuilt_extension_does_not_fall_back_to_the_solution(tree):
    program = "import tiny_llm.kernels as k; print(k.is_built()); k.extension()"
    result = run(tree, "-c", program)
    assert result.stdout.strip() == "False"
    assert "has no tiny_llm_ext" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["main", "bench"])
def test_commands_use_and_report_the_learner_tree(tree, command):
    loader = "week1" if command == "main" else "week2"
    result = run(None, "-m", f"tiny_llm.cli.{command}", "--model", "demo", "--loader", loader)
    assert result.returncode == 2
    first, *others = result.stderr.splitlines()
    assert first == f"solution: mine (your tree in {tree}; --solution ref runs the reference)"
    assert not any("solution: mine" in line for line in others), "the tree must be reported once"
    if command == "bench":
        assert others[-1].startswith("bench: the C++ extension cannot be used (")
    else:
        assert others[-1] == (
            "main: week 1, day 5, task 3: Qwen3ModelWeek1.__init__ is yours to write; see the "
            "book, 'Day 1.5: the Qwen3 model' (--solution ref runs the reference)"
        )
        argv = ("--model", "demo", "--solution", "ref", "--loader", "week1", "--max-tokens", "1")
        result = run(None, "-m", "tiny_llm.cli.main", *argv)
        assert (result.returncode, result.stderr) == (0, "model: demo\n")


@pytest.mark.parametrize(
    ("message", "output"),
    [
        (
            "week 2, day 2, task 2: dot is yours to write; see the\nbook, 'Day 2.2: x'",
            ("week 2, day 2, task 2 is yours to write:", "dot", "; see the book, 'Day 2.2: x'"),
        ),
        (
            "the C++ extension cannot be used (no module); …",
            ("your extension is not built yet:", "`pdm run build-ext`", " builds it"),
        ),
        ("at index [0] expected 1, got 2", None),
    ],
)
def test_missing_dependency_is_named(message, output):
    assert pytest_summary.summary_of(message) == output


def test_test_files_of_a_day(capsys):
    assert run_tests.tests_of(2, 2, []) == ["tests/week_2/test_day_2.py"]
    third = run_tests.tasks_in(["-q", "-k", "task_3"])
    assert run_tests.tests_of(2, 2, third) == ["tests/week_2/test_day_3.py"]
    assert "these tasks belong to week 2, day 3" in capsys.readouterr().out
    both = run_tests.tests_of(2, 3, run_tests.tasks_in(["-ktask_1 or task_3"]))
    assert both == ["tests/week_2/test_day_2.py", "tests/week_2/test_day_3.py"]
    assert len(run_tests.tests_of(2, None, [])) == 7


@pytest.mark.slow
def test_test_command_runs_the_learner_code(tree):
    command = ("-m", "tools.run_tests", "--week", "1", "--day", "1")
    result = run(None, *command, "--", "-q", "-k", "task_2_linear")
    assert result.returncode == 1
    output = [line for line in result.stdout.splitlines() if "yours to write" in line]
    assert output == [
        "week 1, day 1, task 2 is yours to write: linear; see the book, 'Day 1.1: attention and "
        "multi-head attention' (18 tests wait)"
    ]
    assert len(result.stdout.splitlines()) < 10, "expected an error message without a traceback"
    assert run(None, *command, "--solution", "ref", "-q", "-k", "task_2_linear").returncode == 0


def test_reveal_shows_and_applies(tree, capsys, monkeypatch):
    monkeypatch.chdir(tree.parent)
    assert reveal.main(["--week", "1", "--day", "1", "--task", "2"]) == 0
    shown = capsys.readouterr().out
    assert "task 1.1.2 linear in mine/src/tiny_llm/basics.py" in shown
    assert "y = x @ w.T" in shown
    assert "softmax" not in shown
    file = tree / "src" / "tiny_llm" / "basics.py"
    assert "y = x @ w.T" not in file.read_text(), "without --apply, the file must be unchanged"
    assert reveal.main(["--week", "1", "--day", "1", "--task", "2", "--apply"]) == 0
    assert "y = x @ w.T" in file.read_text()
    assert "softmax is yours to write" in file.read_text(), "other tasks must be unchanged"


def test_reveal_does_not_wrap_in_a_narrow_terminal(tree, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    reveal.main(["--week", "2", "--day", "1", "--task", "4"])
    assert "    # Chunked prefill bounds activation memory by the chunk instead of the prompt" in (
        capsys.readouterr().out
    )


@pytest.mark.slow
def test_stale_extension_is_reported(tree):
    source = tree / EXTENSION / "src" / "axpby" / "axpby_cpu.cpp"
    assert not is_stale(tree), "a tree without a build must not be stale"
    stamp = tree / "build" / "built"
    stamp.parent.mkdir()
    stamp.touch()
    later = stamp.stat().st_mtime + 60
    assert not is_stale(tree)
    os.utime(source, (later, later))
    assert is_stale(tree)
    command = ("-m", "tools.run_tests", "--week", "1", "--day", "1", "-k", "nothing")
    assert "pdm run build-ext" in run(None, *command).stdout
    os.utime(stamp, (later, later))
    assert not is_stale(tree)


@pytest.mark.slow
def test_reveal_diffs_and_backs_up_learner_code(tree, capsys):
    file = tree / "src" / "tiny_llm" / "basics.py"
    reveal.apply_tasks(tree, {"1.1.2"})
    file.write_text(file.read_text().replace("y = x @ w.T", "y = x @ w"))
    assert reveal.main(["--week", "1", "--day", "1", "--task", "2", "--apply"]) == 0
    shown = capsys.readouterr().out
    assert "-    y = x @ w\n" in shown.replace(" \n", "\n") or "-    y = x @ w" in shown
    assert "+    y = x @ w.T" in shown
    assert "y = x @ w\n" in (tree / "revealed" / "1.1.2-linear.py").read_text()
    unchanged = tree / "revealed" / "1.1.2-multi-head.py"
    assert not unchanged.exists(), "an unchanged block must not be backed up"


@pytest.mark.slow
@pytest.mark.parametrize(("passed", "flags"), [(True, []), (True, ["--force"]), (False, [])])
def test_reveal_keeps_passing_code(tree, capsys, monkeypatch, passed, flags):
    def fixed_outcome(self, tree, tests, *options, timeout=None):
        return [Outcome("tests/week_1/test_day_1.py::test_task_2_linear", passed, "")]

    monkeypatch.setattr(Runner, "run", fixed_outcome)
    file = tree / "src" / "tiny_llm" / "basics.py"
    reveal.apply_tasks(tree, {"1.1.2"})
    file.write_text(file.read_text().replace("y = x @ w.T", "y = w @ x"))
    argv = ["--week", "1", "--day", "1", "--apply", *flags]
    assert reveal.main(argv) == 0
    output = capsys.readouterr().out.replace("\n", "")
    is_kept = passed and not flags
    kept = "task 1.1.2 passes its tests, so your code stays (--force replaces it)"
    assert (kept in output) == is_kept
    assert ("y = w @ x" in file.read_text()) == is_kept
    assert ("your previous code is in" in output) == (not is_kept)
    # The solution of an unwritten task is inserted in any case.
    assert "softmax is yours to write" not in file.read_text()
    if not is_kept:
        file.write_text(file.read_text().replace("y = x @ w.T", "y = None"))
        reveal.main([*argv, "--force"])
        first, second = ("1.1.2-linear.py", "1.1.2-linear-2.py")
        assert "w @ x" in (tree / "revealed" / first).read_text(), "the first backup must be kept"
        assert "None" in (tree / "revealed" / second).read_text()


def test_partially_written_task_counts_as_started(tree):
    file = tree / "src" / "tiny_llm" / "basics.py"
    assert reveal.tasks_begun(tree) == set()
    marker = "# [task 1.1.1 softmax]\n"
    file.write_text(file.read_text().replace(marker, f"{marker}    x = (x\n"))
    assert reveal.tasks_begun(tree) == {"1.1.1"}, "a block with a syntax error must count as begun"
    kernel = tree / EXTENSION / "src" / "axpby" / "axpby.metal"
    text = kernel.read_text()
    marker = next(line for line in text.split("\n") if "[/task 1.7.2" in line)
    kernel.write_text(text.replace(marker, f"    z[i] = 0;\n{marker}"))
    # Code below the starter's comment counts as begun.
    assert reveal.tasks_begun(tree) == {"1.1.1", "1.7.2"}


def error_of_reveal(capsys, *argv: str) -> str:
    with pytest.raises(SystemExit):
        reveal.main(list(argv))
    return capsys.readouterr().err


def test_reveal_locates_blocks_by_markers(tree, capsys):
    file = tree / "src" / "tiny_llm" / "basics.py"
    file.write_text(file.read_text().replace("# [task 1.1.1 softmax]\n", "#\n"))
    day = ("--week", "1", "--day", "1")
    assert "does not match" in error_of_reveal(capsys, *day)
    file.write_text(file.read_text().replace("    # [/task 1.1.1 softmax]\n", ""))
    assert "has lost its marker [task 1.1.1 softmax]" in error_of_reveal(capsys, *day)
    unknown = error_of_reveal(capsys, *day, "--task", "7")
    assert "week 1, day 1 has no task 7; it has 1, 2" in unknown
    assert "unknown day 1.9" in error_of_reveal(capsys, "--week", "1", "--day", "9")


def test_reveal_without_a_tree(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("TINY_LLM_MINE", str(tmp_path / "none"))
    error = error_of_reveal(capsys, "--week", "1", "--day", "1")
    assert "`pdm run start-course` creates it" in error


def test_selected_tree(tree, monkeypatch, tmp_path):
    assert selected_tree(None, None) == selected_tree(None, "mine") == tree
    assert selected_tree(None, "tiny_llm") == tree
    assert selected_tree(None, "ref") is selected_tree(None, "tiny_llm_ref") is None
    monkeypatch.setenv("TINY_LLM_MINE", str(tmp_path / "none"))
    assert selected_tree(None, None) is selected_tree(None, "tiny_llm") is None


def test_missing_pytest_is_installed_by_pdmw(tmp_path, monkeypatch):
    monkeypatch.setattr(build, "ROOT", tmp_path)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(build.sys, "argv", ["run_tests.py", "--week", "1"])
    with pytest.raises(SystemExit, match="test: pytest is not installed; `pdm install` installs"):
        build.require_pytest("test")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "groups.installed").touch()  # pdmw's environment
    executed = []
    monkeypatch.setattr(build.os, "execv", lambda *command: executed.append(command))
    build.require_pytest("test")
    assert executed == [(tmp_path / "pdmw", ["pdmw", "run", "test", "--week", "1"])]


PASSED, SKIPPED = Outcome("t", True, ""), Outcome("t", None, "needs clang")


@pytest.mark.parametrize(
    ("outcomes", "mark"),
    [
        ([], "no tests"),
        ([PASSED], "done"),
        ([SKIPPED], "skipped"),
        ([PASSED, SKIPPED], "done, Metal untested"),
        ([PASSED, Outcome("t", False, "softmax is yours to write")], "to write"),
        ([Outcome("t", False, "UserError: the C++ extension cannot be used (…)")], "not built yet"),
        ([PASSED, Outcome("t", False, "expected 1, got 2")], "fails"),
    ],
)
def test_progress_of_a_task(outcomes, mark):
    assert mark in state(outcomes)[0]
    if mark == "skipped":
        assert state(outcomes)[1] == "needs clang"


@pytest.mark.parametrize(
    ("selected", "status", "message"),
    [
        ("metal", 5, "2 tests are skipped: needs clang\nno test ran: all are skipped"),
        ("task_2", 5, 'no test ran: none of 3 tests matches -k "task_2"'),
        ("task_1", 0, "2 tests are skipped: needs clang"),
    ],
)
def test_skipped_tests_are_explained_and_are_not_a_success(tmp_path, selected, status, message):
    (tmp_path / "test_day.py").write_text(
        "import pytest\n"
        "def test_task_1_cpu(): pass\n"
        "def test_task_1_metal(): pytest.skip('needs clang')\n"
        "def test_task_1_metal_too(): pytest.skip('needs clang')\n"
    )
    command = ("-m", "pytest", *run_tests.BRIEF_REPORT, str(tmp_path), "-k", selected)
    options = ("-p", "no:cacheprovider", "--disable-plugin-autoload", "--rootdir", str(tmp_path))
    result = run(None, *command, *options)
    assert result.returncode == status, result.stdout + result.stderr
    assert message in result.stdout


@pytest.mark.slow
def test_crash_report_names_the_test_and_the_usual_cause(tree, capsys):
    test = tree / "test_crash.py"
    test.write_text("import os, signal\ndef test_lambda(): os.kill(os.getpid(), signal.SIGSEGV)\n")
    with Runner() as runner:
        [outcome] = runner.run(tree, [str(test)])
    message_start = "test_crash.py::test_lambda crashed (SIGSEGV). The usual cause is C++ code that"
    assert outcome.test == ""
    assert message_start in outcome.message
    assert run_tests.run_learners_tests(tree, ["-q", str(test)]) == 128 + 11
    assert message_start in capsys.readouterr().out


def test_progress_of_a_fresh_tree(tree, capsys):
    assert progress.main(["--week", "1"]) == 0
    output = capsys.readouterr().out
    assert "0 of 15 tasks done" in output
    assert output.count("to write") == 15


@pytest.mark.slow
def test_progress_runs_the_tests(tree):
    reveal.apply_tasks(tree, {"1.2.1"})
    result = run(None, "-m", "tools.course.progress", "--week", "1")
    assert result.returncode == 0, result.stderr
    assert "1 of 15 tasks done" in result.stdout


@pytest.mark.slow
def test_progress_reruns_changed_tasks(tree, capsys, monkeypatch):
    requested = []

    def passing(self, tree, tests, *options, timeout=None):
        requested.extend(tests)
        return [Outcome(f"{test}::test_task_1_x", True, "") for test in tests]

    def days_tested() -> list[str]:
        requested.clear()
        assert progress.main([]) == 0
        return sorted(test.rpartition("/")[2] for test in requested)

    def change(file: str, text: str, other: str) -> None:
        path = tree / "src" / "tiny_llm" / file
        assert text in path.read_text()
        path.write_text(path.read_text().replace(text, other))

    monkeypatch.setattr(Runner, "run", passing)
    assert days_tested() == []
    reveal.apply_tasks(tree, {"1.1.1", "1.2.1", "1.5.1"})
    all_days = ["test_day_1.py", "test_day_2.py", "test_day_5.py"]
    assert days_tested() == all_days
    assert days_tested() == []
    required = sum(not task.is_optional for task in TASKS.values())
    assert f"3 of {required} tasks done" in capsys.readouterr().out
    change("positional_encoding.py", "range(start, ", "range(1 + start, ")
    assert days_tested() == all_days[1:], "expected the block's day and later days"
    change("positional_encoding.py", "import math", "import math  # mine")
    assert days_tested() == all_days, "expected all days"
    change("qwen3_week1/model.py", "self.input_layernorm(x)", "self.input_layernorm((x)")
    assert days_tested() == all_days, "expected all days after a syntax error"
    requested.clear()
    assert progress.main(["--again", "--week", "1"]) == 0
    assert len(requested) == 3
