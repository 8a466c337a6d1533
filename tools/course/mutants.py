"""`pdm run mutants --day 2.4`: a quiz on mutations of the solution.

Each question shows the failing tests and their messages, as they would appear for the learner's
code, and a list of that day's mutations, one of which was applied. The diff follows the answer.
Mutations in C++ come last: the first one takes minutes to compile, the others seconds. The score is
stored in the learner's history. Without --day, lists the days with their best scores.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from tests.course.wrong import WRONG, Wrong
from tools.metal_emulator import has_clang

from . import history
from .build import LESS_OPTIMIZED, build_tree, require_pytest
from .runner import Outcome, Runner
from .solution_flag import selected_tree
from .tasks import DAYS, Day, day_of, day_of_task
from .tree import ROOT
from .wrong_solutions import (
    INTERPRETED,
    run_compiled,
    run_interpreted,
    suffix_of,
    write_complete_tree,
)

KIND = "mutants"
QUESTIONS = 4  # default number of questions per round
CHOICES = 5  # options per question
SHOWN_TESTS = 8  # maximum number of failing and of passing tests shown
SHOWN_MESSAGES = 2  # maximum number of failure messages shown, one per test
SHOWN_LINES = 10  # maximum number of lines shown per message


def main(argv: list[str] | None = None) -> int:
    """Asks the questions. Exit status: 0, or 2 if the day has no mistakes."""
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--day", metavar="N.M", help="day, such as 2.4")
    parser.add_argument(
        "--count", type=int, default=QUESTIONS, metavar="N", help="number of questions (4)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="seed of the questions (default: varies by round)"
    )
    parser.add_argument(
        "--answer",
        type=_numbers,
        metavar="N,N,…",
        help="answers, one per question, instead of prompts",
    )
    args = parser.parse_args(argv)
    tree = selected_tree(parser, None)
    console = Console(highlight=False, emoji=False)
    if args.day is None:
        console.print(overview(tree))
        return 0
    require_pytest("mutants")
    try:
        day = day_of(*_day(args.day))
        if args.count < 1:
            raise LookupError(f"--count must be at least 1, got {args.count}")
        mistakes = mistakes_of(day)
    except LookupError as error:
        parser.error(str(error))
    count = args.count if args.answer is None else len(args.answer)
    seed = args.seed
    if seed is None:
        seed = sum(entry["day"] == day.id for entry in history.entries(tree, KIND))
    answers = None if args.answer is None else iter(args.answer)

    def ask(choices: int) -> int | None:
        return prompt(console, choices) if answers is None else next(answers, None)

    named, asked = play(questions(mistakes, count, seed), ask, console)
    if asked:
        history.append(tree, KIND, {"day": day.id, "seed": seed, "named": named, "asked": asked})
        console.print(f"you named {named} of {asked}")
    return 0


def mistakes_of(day: Day) -> list[Wrong]:
    """A day's mistakes that this machine can run; raises `LookupError` if none."""
    mistakes = [wrong for wrong in WRONG if day_of_task(wrong.task) is day]
    shown = [wrong for wrong in mistakes if suffix_of(wrong) != ".metal" or has_clang()]
    if not shown:
        raise LookupError(
            f"day {day.id} has only Metal mistakes, which run in the emulator and require "
            "clang: `apt install clang-19 libclang-rt-19-dev`"
        )
    return shown


def questions(mistakes: Sequence[Wrong], count: int, seed: int) -> list[tuple[Wrong, list[Wrong]]]:
    """Selects random mistakes and their multiple-choice options; deterministic per seed.

    Compiled mistakes come last. The options prefer mistakes of the same task, which are the hardest
    to distinguish.
    """
    order = random.Random(seed)
    found = []
    for applied in order.sample(mistakes, min(count, len(mistakes))):
        others = [
            wrong for wrong in mistakes if wrong is not applied and wrong.what != applied.what
        ]
        order.shuffle(others)
        others.sort(key=lambda wrong: wrong.tested_by != applied.tested_by)
        choices = [applied, *others[: CHOICES - 1]]
        order.shuffle(choices)
        found.append((applied, choices))
    return sorted(found, key=lambda question: suffix_of(question[0]) not in INTERPRETED)


def play(
    quiz: Sequence[tuple[Wrong, list[Wrong]]],
    ask: Callable[[int], int | None],
    console: Console,
) -> tuple[int, int]:
    """Plays one round; returns the numbers of correct answers and of answers.

    Args:
        quiz: return value of `questions`.
        ask: maps the number of options to the selected option (from 1), or None to stop.
    """
    named = asked = 0
    for number, ((applied, choices), outcomes) in enumerate(test_failures(quiz, console), 1):
        console.rule(f"mistake {number} of {len(quiz)}, task {applied.task}")
        show_symptoms(outcomes, console)
        for option, wrong in enumerate(choices, 1):
            console.print(f"  {option}  {wrong.what}", markup=False)
        answer = ask(len(choices))
        if answer is None:
            break
        asked += 1
        is_correct = answer == choices.index(applied) + 1
        named += is_correct
        verdict = "[green]yes[/]" if is_correct else "[red]no[/]"
        console.print(f"{verdict}: {applied.what}")
        change = [f"-{line}" for line in applied.find.split("\n")]
        change += [f"+{line}" for line in applied.replace.split("\n")]
        console.print(Syntax("\n".join(change), "diff", background_color="default"))
    return named, asked


def test_failures(
    quiz: Sequence[tuple[Wrong, list[Wrong]]], console: Console
) -> Iterator[tuple[tuple[Wrong, list[Wrong]], list[Outcome]]]:
    """Yields each question, and the test outcomes of the solution with the question's mistake."""
    complete = ROOT / "build" / "mutants" / "mine"
    with Runner() as runner, tempfile.TemporaryDirectory() as folder:
        for number, question in enumerate(quiz):
            applied = question[0]
            if suffix_of(applied) in INTERPRETED:
                with console.status("running the tests"):
                    tree = Path(folder) / str(number)
                    outcomes = run_interpreted(runner, tree, applied)
            else:
                with console.status("compiling, which takes minutes the first time"):
                    write_complete_tree(complete)
                    output = build_tree(complete, *LESS_OPTIMIZED)
                    if output is not None:
                        sys.exit(f"mutants: the solution does not build:\n{output}")
                    outcomes = run_compiled(runner, complete, applied)
            yield question, outcomes


def show_symptoms(outcomes: Sequence[Outcome], console: Console) -> None:
    """Prints the failing tests and their first messages."""
    failed = [outcome for outcome in outcomes if outcome.passed is False]
    functions = list(dict.fromkeys(_function(outcome.test) for outcome in failed if outcome.test))
    passing = {_function(outcome.test) for outcome in outcomes if outcome.passed} - {*functions}
    listed = _listed(functions) or "the process ended"
    console.print(f"{len(failed)} of {len(outcomes)} tests fail: {listed}")
    if passing:
        console.print(f"these pass: {_listed(sorted(passing))}", style="dim")
    messages = {_function(outcome.test): outcome.message for outcome in reversed(failed)}
    for function in [*functions, ""][:SHOWN_MESSAGES]:
        for line in messages.get(function, "").strip().split("\n")[:SHOWN_LINES]:
            console.print(f"  │ {line}", markup=False, style="yellow", soft_wrap=True)
    console.print("which mistake is it?")


def prompt(console: Console, choices: int) -> int | None:
    """Prompts for the number of an option; None at EOF or after `q`."""
    while True:
        try:
            text = console.input(f"1 to {choices}, or q to stop: ").strip()
        except EOFError:
            return None
        if text == "q":
            return None
        if text.isdecimal() and 1 <= int(text) <= choices:
            return int(text)


def overview(tree: Path | None) -> Table:
    """Table of the days, with number of mistakes and best score."""
    table = Table("day", "", "mistakes", "best round")
    played = history.entries(tree, KIND)
    for day in DAYS:
        count = sum(day_of_task(wrong.task) is day for wrong in WRONG)
        rounds = [entry for entry in played if entry["day"] == day.id]
        best = max(rounds, key=lambda entry: entry["named"] / entry["asked"], default=None)
        score = "" if best is None else f"{best['named']} of {best['asked']}"
        table.add_row(day.id, day.title, str(count), score)
    return table


def _listed(names: Sequence[str]) -> str:
    """The first `SHOWN_TESTS` names, and the number of omitted names."""
    more = len(names) - SHOWN_TESTS
    return ", ".join(names[:SHOWN_TESTS]) + (f" and {more} more" if more > 0 else "")


def _function(test: str) -> str:
    """Name of a test function, without file and parameters."""
    return test.partition("::")[2].partition("[")[0]


def _day(text: str) -> tuple[int, int]:
    week, _, day = text.partition(".")
    if not (week.isdecimal() and day.isdecimal()):
        raise LookupError(f"--day must be week.day, such as 2.4, got '{text}'")
    return int(week), int(day)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be numbers such as 2,1,4, got '{text}'") from None


if __name__ == "__main__":
    sys.exit(main())
