"""`pdm run scoreboard`: speed of the learner's engine and of other engines.

Tests which of the learner's models and kernels work, then runs the model of the last working week:
a prompt of 128 tokens, decoding after 128, and four sequences at once. Tests of other days are not
run; their results are those of the last `pdm run progress`. Compares the model with the
learner's earlier weeks (from the history), the solution's engine (in Weeks 2 and 3 also with plain
loops for kernels), llama.cpp if installed, and the limits of this machine's memory and arithmetic.
After day 5.3 it also measures goodput. Takes about a minute, longer if tests must run. Writes the
history to history.jsonl in the learner's source tree, and the report to scoreboard.html.
"""

import argparse
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmark.make_checkpoint import SHAPES
from benchmark.model_costs import ModelCosts
from benchmark.peers import Checkpoints
from benchmark.roofline import ProbeError, cpu_name, measure_best, usable_threads
from benchmark.systems.client import exit_on_sigterm
from tiny_llm import kernels
from tiny_llm.errors import UserError
from tiny_llm.models import find_model
from tools.course import history
from tools.course.solution_flag import parse_with_tree
from tools.course.tree import display_path

from .html_report import render_page
from .measure import (
    LAST_MODEL,
    SLO,
    count_tasks,
    count_tests,
    course_engine,
    find_llama,
    furthest_week,
    kernels_of_week_4,
    llama_engine,
    measure_engines,
    measure_goodput,
    roofline_row,
    run_tests,
    serves_load,
    untested_days,
    work_folder,
)
from .score import Row, Score
from .table import print_score

KIND = "scoreboard"
ROOFLINE_ROUNDS = 2  # number of measurements of the machine's limits
PLAIN_WEEKS = {2, 3}  # weeks in which a learner's kernels are plain loops


def main(argv: list[str] | None = None) -> int:
    """Runs the command. Exit status: 0, or 2 for a user error."""
    parser = argparse.ArgumentParser(
        prog="scoreboard", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    model = parser.add_mutually_exclusive_group()
    model.add_argument("--model", default="demo", help="name or folder (demo)")
    model.add_argument(
        "--random",
        choices=SHAPES,
        metavar="SHAPE",
        help=f"random weights of a shape (takes minutes): {', '.join(SHAPES)}",
    )
    parser.add_argument(
        "--llama-python", metavar="PYTHON", help="interpreter with llama-cpp-python"
    )
    parser.add_argument("--show", action="store_true", help="show the last run again")
    args, tree = parse_with_tree(parser, argv)
    console = Console(highlight=False, emoji=False)
    scores = [Score.from_json(entry) for entry in history.entries(tree, KIND)]
    if args.show and not scores:
        parser.error(f"no runs in {display_path(history.history_file(tree))} yet")
    if not args.show:
        exit_on_sigterm()
        try:
            score = run(args, tree, console)
        except UserError as error:
            parser.error(str(error))
        scores.append(Score.from_json(history.append(tree, KIND, score.as_json())))
    print_score(scores[-1], scores[:-1], console)
    page = history.history_file(tree).with_name("scoreboard.html")
    page.write_text(render_page(scores[-1], scores[:-1]), encoding="utf-8")
    console.print(f"HTML report: {display_path(page)}", soft_wrap=True)
    return 0


def run(args: argparse.Namespace, tree: Path | None, console: Console) -> Score:
    """Runs tests and measurements; raises `UserError` if no model can be loaded."""
    if args.random is not None:
        name = f"random weights of {args.random}"
        folder = Checkpoints(work_folder(), args.random).mlx()
    else:
        name, folder = args.model, find_model(args.model, Console(stderr=True))
    outcomes = run_tests(tree, console)
    week = furthest_week(outcomes) if tree is not None else LAST_MODEL
    remarks, engines = [], []
    if untested := untested_days(tree, outcomes):
        remarks.append(
            f"Not tested since the last change: days {', '.join(untested)}; `pdm run progress` "
            "tests all."
        )
    if week == 0:
        remarks.append(
            "Your model runs when task 1.5.3 is done; its speed is measured from then on."
        )
    elif tree is not None:
        chosen = kernels_of_week_4(outcomes) if week > LAST_MODEL else (None, None)
        engines.append(course_engine(f"yours, week {week}", folder, week, tree, *chosen))
    ours = dict.fromkeys((min(week or 1, LAST_MODEL), LAST_MODEL))
    engines += [course_engine(f"ours, week {number}", folder, number, None) for number in ours]
    if tree is not None and week in PLAIN_WEEKS and kernels.computes_on_cpu():
        plain = course_engine(f"ours, week {week}, plain loops", folder, week, None)
        engines.append(replace(plain, plain=True))
    try:
        python = find_llama(args.llama_python)
        if python is None:
            remarks.append(
                "llama.cpp: not installed; --llama-python names an interpreter that has it."
            )
        else:
            engines.append(llama_engine(python, folder, work_folder(), usable_threads()))
    except ImportError:
        remarks.append("llama.cpp: `pdm run python -m pip install gguf` adds a GGUF writer.")
    except (OSError, subprocess.CalledProcessError):
        remarks.append(f"llama.cpp: {python} has no llama_cpp.")
    rows = measure_engines(engines, console)
    yours = rows.pop(0) if tree is not None and week else Row("yours")
    if tree is None or serves_load(outcomes):
        with console.status("goodput"):
            measure_goodput(rows[len(ours) - 1], folder, None)
            if tree is not None:
                measure_goodput(yours, folder, tree)
        remarks.append(
            f"Goodput is the engine's highest number of requests per second within {SLO} ms, "
            "at the rates of day 5.3."
        )
    try:
        with console.status("this machine's limits"):
            rows.append(roofline_row(measure_best(ROOFLINE_ROUNDS), ModelCosts.from_folder(folder)))
    except ProbeError as error:
        remarks.append(str(error))
    machine = f"{cpu_name()}, {usable_threads()} threads"
    return Score(
        "", name, machine, week, count_tasks(outcomes), count_tests(outcomes), yours, rows, remarks
    )


if __name__ == "__main__":
    sys.exit(main())
