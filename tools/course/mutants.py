"""`pdm run mutants --day 2.4`: our solution with a hidden mistake; name it from what the tests say.

Each question shows which tests fail and what they say, as they would say it of your own code, and
lists mistakes of that day, one of which was made. After your answer it shows the change. Mistakes
in C++ are compiled: the first one takes some minutes, each other one some seconds. The score is
kept in your tree's history. Without --day it lists the days and your best score.
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

from tests.course.wrong import Wrong
from tests.course.wrong.all_weeks import WRONG
from tools.metal_emulator import has_clang

from . import history
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
QUESTIONS = 4  # of a round
CHOICES = 5  # of a question
SHOWN_TESTS = 8  # names of tests that fail, and of tests that pass
SHOWN_MESSAGES = 2  # the first of each test that fails
SHOWN_LINES = 10  # of a message


def main(argv: list[str] | None = None) -> int:
    """The exit status is 0, whatever the score, or 2 if there is nothing to ask."""
    parser = argparse.ArgumentParser(
        prog="mutants", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--day", metavar="N.M", help="such as 2.4")
    parser.add_argument("--count", type=int, default=QUESTIONS, metavar="N", help="questions (4)")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="which questions; a new round has new ones"
    )
    parser.add_argument(
        "--answer",
        type=_numbers,
        metavar="N,N,…",
        help="the answers, one a question, instead of asking for them",
    )
    args = parser.parse_args(argv)
    tree = selected_tree(parser, None)
    console = Console(highlight=False, emoji=False)
    if args.day is None:
        console.print(overview(tree))
        return 0
    try:
        day = day_of(*_day(args.day))
        if args.count < 1:
            raise LookupError(f"--count is {args.count}; it must be at least 1")
        mistakes = mistakes_of(day)
    except LookupError as error:
        parser.error(str(error))
    count = args.count if args.answer is None else len(args.answer)
    seed = args.seed
    if seed is None:
        seed = sum(entry["day"] == day.id for entry in history.entries(tree, KIND))
    if args.answer is None:
        ask: Callable[[int], int | None] = PromptedAnswers(console)
    else:
        ask = ScriptedAnswers(args.answer)
    named, asked = play(questions(mistakes, count, seed), ask, console)
    if asked:
        history.append(tree, KIND, {"day": day.id, "seed": seed, "named": named, "asked": asked})
        console.print(f"you named {named} of {asked}")
    return 0


def mistakes_of(day: Day) -> list[Wrong]:
    """The mistakes of a day that can be shown on this machine.

    Raises:
        LookupError: there are none.
    """
    mistakes = [wrong for wrong in WRONG if day_of_task(wrong.task) is day]
    shown = [wrong for wrong in mistakes if suffix_of(wrong) != ".metal" or has_clang()]
    if not shown:
        raise LookupError(
            f"day {day.id} has mistakes in Metal only, and they run in the emulator, which needs "
            "clang: `apt install clang-19 libclang-rt-19-dev`"
        )
    return shown


def questions(mistakes: Sequence[Wrong], count: int, seed: int) -> list[tuple[Wrong, list[Wrong]]]:
    """Which mistakes are made, each with what to choose from, it included; the seed decides.

    The choices are mistakes of the same task first: they are the hardest to tell apart.
    """
    order = random.Random(seed)
    found = []
    for made in order.sample(mistakes, min(count, len(mistakes))):
        others = [wrong for wrong in mistakes if wrong is not made and wrong.what != made.what]
        order.shuffle(others)
        others.sort(key=lambda wrong: wrong.tested_by != made.tested_by)
        choices = [made, *others[: CHOICES - 1]]
        order.shuffle(choices)
        found.append((made, choices))
    return found


def play(
    round_of: Sequence[tuple[Wrong, list[Wrong]]],
    ask: Callable[[int], int | None],
    console: Console,
) -> tuple[int, int]:
    """Asks the questions.

    Args:
        round_of: from `questions`.
        ask: number of choices -> the chosen one, from 1, or None to stop.
        console: where questions and answers are shown.

    Returns:
        How many were named, and how many were answered.
    """
    named = asked = 0
    for number, ((made, choices), outcomes) in enumerate(test_failures(round_of, console), 1):
        console.rule(f"mistake {number} of {len(round_of)}, task {made.task}")
        show_symptoms(outcomes, console)
        for place, wrong in enumerate(choices, 1):
            console.print(f"  {place}  {wrong.what}", markup=False)
        answer = ask(len(choices))
        if answer is None:
            break
        asked += 1
        right = answer == choices.index(made) + 1
        named += right
        verdict = "[green]yes[/]" if right else "[red]no[/]"
        console.print(f"{verdict}: {made.what}")
        change = [f"-{line}" for line in made.find.split("\n")]
        change += [f"+{line}" for line in made.replace.split("\n")]
        console.print(Syntax("\n".join(change), "diff", background_color="default"))
    return named, asked


def test_failures(
    round_of: Sequence[tuple[Wrong, list[Wrong]]], console: Console
) -> Iterator[tuple[tuple[Wrong, list[Wrong]], list[Outcome]]]:
    """Makes the mistakes one by one, each when it is asked for, and runs the tests of its task."""
    complete = ROOT / "build" / "mutants" / "mine"
    with Runner() as runner, tempfile.TemporaryDirectory() as folder:
        for number, question in enumerate(round_of):
            made = question[0]
            if suffix_of(made) in INTERPRETED:
                with console.status("running the tests"):
                    tree = Path(folder) / str(number)
                    outcomes = run_interpreted(runner, tree, made)
            else:
                with console.status("compiling, which takes minutes the first time"):
                    write_complete_tree(complete)
                    outcomes = run_compiled(runner, complete, made)
            yield question, outcomes


def show_symptoms(outcomes: Sequence[Outcome], console: Console) -> None:
    """What a learner would see: which tests fail, and what the first of them say."""
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


class PromptedAnswers:
    """Asks for a number until there is one."""

    def __init__(self, console: Console):
        self._console = console

    def __call__(self, choices: int) -> int | None:
        """The number, or None at the end of the input or after `q`."""
        while True:
            try:
                text = self._console.input(f"1 to {choices}, or q to stop: ").strip()
            except EOFError:
                return None
            if text == "q":
                return None
            if text.isdecimal() and 1 <= int(text) <= choices:
                return int(text)


class ScriptedAnswers:
    """Answers that are known before the questions, one after the other."""

    def __init__(self, answers: Sequence[int]):
        self._answers = iter(answers)

    def __call__(self, choices: int) -> int | None:
        """The next one; None after the last."""
        return next(self._answers, None)


def overview(tree: Path | None) -> Table:
    """The days, how many mistakes each has, and the best score."""
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
    """The first of some names, and how many there are besides."""
    more = len(names) - SHOWN_TESTS
    return ", ".join(names[:SHOWN_TESTS]) + (f" and {more} more" if more > 0 else "")


def _function(test: str) -> str:
    """The name of a test's function, without its file and its case."""
    return test.partition("::")[2].partition("[")[0]


def _day(text: str) -> tuple[int, int]:
    week, _, day = text.partition(".")
    if not (week.isdecimal() and day.isdecimal()):
        raise LookupError(f"--day is '{text}'; it is week and day, such as 2.4")
    return int(week), int(day)


def _numbers(text: str) -> list[int]:
    try:
        return [int(number) for number in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"'{text}' is not numbers such as 2,1,4") from None


if __name__ == "__main__":
    sys.exit(main())
