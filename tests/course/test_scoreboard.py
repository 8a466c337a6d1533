"""`pdm run scoreboard`: task counts, history, charts and engine benchmarks."""

import dataclasses
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from benchmark.roofline import Machine
from tools.course import history
from tools.course.runner import Outcome
from tools.course.tasks import TASKS
from tools.scoreboard import __main__ as scoreboard
from tools.scoreboard.html_report import render_page
from tools.scoreboard.measure import (
    count_tasks,
    count_tests,
    course_engine,
    furthest_week,
    kernels_of_week_4,
    serves_load,
)
from tools.scoreboard.score import Row, Score
from tools.scoreboard.table import print_score

PASSED, FAILED, SKIPPED = (Outcome("t", passed, "") for passed in (True, False, None))


def score(week: int, when: str, decode: float, model: str = "demo", machine: str = "m") -> Score:
    tasks = {"1": [15, 15], "2": [week, 17]}
    yours = Row(f"yours, week {week}", {"prefill": 9.0, "decode": decode}, ["a <note>"])
    others = [Row("ours, week 3", {"decode": 400.0}), Row("limit of this machine", {"decode": 900})]
    return Score(when, model, machine, week, tasks, tasks, yours, others, ["a remark"])


HISTORY = [
    score(1, "2026-11-01T20:00:00", 4.0),
    score(2, "2026-11-08T20:00:00", 16.0),
    score(2, "2026-11-09T20:00:00", 18.0),
    score(2, "2026-11-10T20:00:00", 99.0, model="another"),
    score(2, "2026-11-10T20:00:00", 99.0, machine="another"),
]
NOW = score(3, "2026-11-15T20:00:00", 30.0)


def test_week_selection():
    tasks = ("1.5.3", "2.1.3", "2.1.4", "3.1.3", "3.2.2")
    done = {task: [PASSED, SKIPPED] for task in tasks}
    assert furthest_week({}) == 0
    assert furthest_week(done) == 2, "Week 3 requires task 3.2.3, which is unwritten"
    assert furthest_week({**done, "3.2.3": [PASSED]}) == 3
    assert furthest_week({**done, "2.1.4": [PASSED, FAILED]}) == 1
    week_4 = {**done, "3.2.3": [PASSED], "4.2.1": [PASSED], "4.2.2": [FAILED]}
    assert furthest_week(week_4) == 4, "Week 3's model with a Week 4 kernel must count as Week 4"
    assert kernels_of_week_4(week_4)[0] == "factored"
    assert kernels_of_week_4({**week_4, "4.2.2": [PASSED]})[0] == "vectors"
    assert kernels_of_week_4({**week_4, "4.2.2": [PASSED], "4.3.3": [PASSED]})[0] == "prefetched"
    assert kernels_of_week_4({**week_4, "4.4.1": [PASSED]})[0] == "panels"
    assert furthest_week({**week_4, "3.2.3": [FAILED]}) == 2
    assert kernels_of_week_4(week_4)[1] is None
    assert kernels_of_week_4({**week_4, "4.6.1": [PASSED], "4.6.2": [PASSED]})[1] == "online"
    split = {**done, "3.2.3": [PASSED], "4.6.3": [PASSED]}
    assert furthest_week(split) == 4, "a Week 4 attention kernel alone must count as Week 4"
    engine = course_engine("yours", Path("m"), 4, None, *kernels_of_week_4(split))
    assert engine.environment["TINY_LLM_ATTENTION"] == "split"
    assert "TINY_LLM_MATMUL" not in engine.environment
    assert dataclasses.replace(engine, plain=True).environment["TINY_LLM_CPU_ISA"] == "portable"


def test_task_and_test_counts_by_week():
    outcomes = {"1.1.1": [PASSED, PASSED], "1.2.1": [PASSED, FAILED], "2.3.3": [SKIPPED]}
    assert count_tasks(outcomes) == {"1": [1, 15], "2": [0, 19], "3": [0, 15], "4": [0, 22]}
    assert count_tests(outcomes) == {"1": [3, 4], "2": [0, 0], "3": [0, 0], "4": [0, 0]}


def test_history_round_trip(tmp_path):
    history.append(tmp_path, "guess", {"right": True})
    written = history.append(tmp_path, "scoreboard", NOW.as_json())
    (entry,) = history.entries(tmp_path, "scoreboard")
    assert Score.from_json(entry) == Score.from_json({**NOW.as_json(), "when": written["when"]})
    history.history_file(tmp_path).write_text('{"kind": "x"}\nno JSON\n')
    with pytest.raises(ValueError, match=r"history.jsonl:2 is not JSON"):
        history.entries(tmp_path, "guess")


def printed(now: Score, width: int) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    print_score(now, HISTORY, console)
    return console.export_text()


@pytest.mark.parametrize("width", [79, 120])
def test_terminal_view(width):
    output = printed(NOW, width)
    assert "week 1: 15 of 15 tasks done, 15 of 15 tests pass" in output
    assert re.search(r"yours, week 2, 2026-11-09 │ +9.00 │.* 18.0 │.* – │", output)
    assert ("█" in output) == (width == 120)
    assert "a remark" in output


def test_html_page():
    page = render_page(NOW, HISTORY)
    drawings = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page)]
    _prefill, decode, runs = drawings  # none of the batch, which was not measured
    widths = [float(bar.get("width", 0)) for bar in decode.iter("rect")]
    assert len(widths) == 5
    assert widths.index(max(widths)) == 4, "the longest bar must be that of the hardware limit"
    assert len(list(runs.iter("circle"))) == 4, "expected only runs of this model on this machine"
    assert "a &lt;note&gt;" in page
    assert "http" not in page, "the page must not load other resources"
    assert "decoding speed by run" not in render_page(NOW, []), "a single run must not be a line"


def test_last_run_is_replayed(tree, capsys):
    with pytest.raises(SystemExit):
        scoreboard.main(["--show"])
    assert "no runs in" in capsys.readouterr().err
    history.append(tree, "scoreboard", NOW.as_json())
    assert scoreboard.main(["--show"]) == 0
    assert "yours, week 3" in capsys.readouterr().out
    assert "Scoreboard" in (tree / "scoreboard.html").read_text()


def test_goodput_column_appears_with_the_required_tasks():
    tasks = [task for task in TASKS if task.startswith(("3.3.", "3.4.", "5.3."))]
    done = {task: [PASSED] for task in tasks}
    assert serves_load(done)
    assert not serves_load({**done, "5.3.3": [FAILED]})
    assert not serves_load({task: done[task] for task in tasks[1:]})
    assert "goodput" not in render_page(NOW, HISTORY)
    good = dataclasses.replace(NOW, yours=Row("yours, week 3", {"decode": 30.0, "goodput": 12.5}))
    for width in (79, 124, 125):
        output = printed(good, width)
        assert "goodput" in output
        assert "12.5" in output
        assert ("█" in output) == (width == 125), "expected bars only if they fit the terminal"
    assert "<h2>goodput, requests/s</h2>" in render_page(good, HISTORY)


@pytest.mark.slow
def test_scoreboard_run(tree, monkeypatch, capsys):
    monkeypatch.setattr(scoreboard, "run_tests", lambda tree, console: {"1.5.3": [PASSED]})
    # Fixed limits save a measurement.
    machine = Machine("a processor", 2, 40.0, 500.0, 800.0, 0.0)
    monkeypatch.setattr(scoreboard, "measure_best", lambda rounds: machine)
    assert scoreboard.main(["--model", "demo-draft", "--llama-python", "no-such-python"]) == 0
    (entry,) = history.entries(tree, "scoreboard")
    rows = {row["name"]: row for row in entry["others"]}
    assert set(rows["ours, week 3"]["speeds"]) == {"prefill", "decode", "batch"}
    assert set(rows["ours, week 1"]["speeds"]) == {"prefill", "decode"}
    assert rows["ours, week 1"]["notes"] == ["decode, 4 at once: Week 1 supports one sequence"]
    assert "yours to write" in entry["yours"]["notes"][0], "expected the unwritten task's error"
    assert "no-such-python has no llama_cpp" in json.dumps(entry["remarks"])
