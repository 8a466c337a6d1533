"""`pdm run speed --day N.M`: measures Week 4's kernels with day 4.1's code.

Day 4.1: measures the matmuls of a decoding step, one of which repeats its work. From the times and
bytes, the learner finds out which one (--answer NAME). Takes a minute with plain loops.
Days from 4.2 on: measures the kernels of the day and of earlier days, interleaved, and the
solution's best kernel, as shares of this machine's limit. The learner's best share is the score,
stored in the learner's history; no test depends on it.
--day all: measures all kernels of the week.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmark.roofline import Machine, ProbeError, measure_best
from tools.course import history
from tools.course.solution_flag import parse_with_tree
from tools.course.tree import ROOT, environment

from .matmuls import DAY_KERNELS, MATMULS, PROGRESS_PREFIX
from .report import kernels_table, matmuls_table, percent, print_answer

KIND = "speed"
ROUNDS = 5
MODULES = {
    "4.5": "fused_ops",
    "4.6": "attention",
    "4.7": "decode_steps",
}  # days not measured by matmuls.py
ROOFLINE_ROUNDS = 3  # number of measurements of the machine's limits


class FailedError(Exception):
    """A measurement failed; the message has the reason."""


def main(argv: list[str] | None = None) -> int:
    """Exit status: 0 at any speed; 2 for a usage error or a failed measurement."""
    parser = argparse.ArgumentParser(
        prog="speed", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--day", choices=sorted(("4.1", *DAY_KERNELS, *MODULES)), required=True)
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, metavar="N", help="rounds per kernel (5)"
    )
    parser.add_argument(
        "--seed", type=int, metavar="N", help="day 4.1: seed that selects the slow matmul"
    )
    parser.add_argument(
        "--answer",
        choices=MATMULS,
        metavar="NAME",
        help="day 4.1: the slow matmul (default: prompts for it)",
    )
    args, tree = parse_with_tree(parser, argv)
    if args.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {args.rounds}")
    if args.day != "4.1" and (args.seed is not None or args.answer is not None):
        parser.error("--seed and --answer are for --day 4.1")
    console = Console(highlight=False, emoji=False)
    try:
        console.print("this machine's limits …", style="dim")
        machine = measure_best(ROOFLINE_ROUNDS)
        console.print(str(machine), soft_wrap=True)
        if args.day == "4.1":
            return find_slowed_matmul(args, tree, machine, console)
        return grade(args, tree, machine, console)
    except (FailedError, ProbeError) as error:
        print(f"speed: {error}", file=sys.stderr)
        return 2


def find_slowed_matmul(
    args: argparse.Namespace, tree: Path | None, machine: Machine, console: Console
) -> int:
    """Day 4.1: shows the matmuls of a step, one of them slowed down, and asks for its name."""
    seed = args.seed
    if seed is None:
        seed = sum(entry["day"] == "4.1" for entry in history.entries(tree, KIND))
    slowed = random.Random(seed).choice([name for name in MATMULS if name != "head"])
    console.print("the matmuls of a step …", style="dim")
    found = measure_in_subprocess("slowed", tree, machine, args.rounds, "--name", slowed)
    console.print(matmuls_table(found["rows"], with_shares=False))
    answer = args.answer or ask(console)
    if answer is None:
        return 0
    is_correct = print_answer(answer, slowed, found, console)
    history.append(tree, KIND, {"day": "4.1", "seed": seed, "right": is_correct})
    return 0


def ask(console: Console) -> str | None:
    """Reads the name of a matmul; None at EOF."""
    while True:
        try:
            text = console.input(f"which matmul repeats its work ({', '.join(MATMULS)})? ").strip()
        except EOFError:
            return None
        if text in MATMULS:
            return text


def grade(args: argparse.Namespace, tree: Path | None, machine: Machine, console: Console) -> int:
    """Days from 4.2 on: prints and stores the kernels' share of the limit."""
    console.print("your kernels …", style="dim")
    yours = measure_in_subprocess("kernels", tree, machine, args.rounds, "--day", args.day)
    console.print("ours …", style="dim")
    ours = measure_in_subprocess("best", None, machine, args.rounds, "--day", args.day)
    rows, best = yours["rows"], ours["rows"]["best"]
    console.print(kernels_table(rows, best))
    if yours.get("one_head"):
        console.print("as many keys, of a single head:")
        console.print(kernels_table(yours["one_head"], ours["one_head"]["best"]))
    for name, why in yours["unwritten"].items():
        console.print(f"{name}: {why}", style="dim", markup=False)
    if yours["prefetch_distance"] is not None:
        distance = yours["prefetch_distance"]
        console.print(f"best_prefetch_distance() of your roofline.py returns {distance} bytes")
    for remark in yours.get("remarks", ()):
        console.print(remark)
    if not rows:
        return 0
    name = max(rows, key=lambda kernel: rows[kernel]["share"])
    console.print(f"your score: {percent(rows[name]['share'])} of the limit, by {name}")
    shares = {kernel: row["share"] for kernel, row in rows.items()}
    history.append(tree, KIND, {"day": args.day, "shares": shares, "ours": best["share"]})
    return 0


def measure_in_subprocess(
    what: str, tree: Path | None, machine: Machine, rounds: int, *options: str
) -> dict[str, Any]:
    """Runs the day's measurements with `tree`'s code; raises `FailedError`."""
    peak = machine.vector_gflop_per_s * 1e9  # Week 4's kernels use vector instructions
    limits = ["--read", str(machine.read_gb_per_s * 1e9), "--peak", str(peak)]
    module = next((name for day, name in MODULES.items() if day in options), "matmuls")
    command = [sys.executable, "-m", f"tools.speed.{module}", what, *limits]
    return result_of([*command, "--rounds", str(rounds), *options], tree)


def result_of(command: Sequence[str], tree: Path | None) -> dict[str, Any]:
    """Last output line of a process, as JSON. Progress lines are shown immediately.

    Raises:
        FailedError: the process failed; the message is its last error line.
    """
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(tree),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        result = ""
        for line in process.stdout:
            if line.startswith(PROGRESS_PREFIX):
                print_progress(line.removeprefix(PROGRESS_PREFIX).rstrip())
            else:
                result = line
        if process.wait() != 0:
            errors.seek(0)
            error_lines = errors.read().strip().splitlines()
            raise FailedError(
                error_lines[-1]
                if error_lines
                else f"the measurement exited with status {process.returncode}."
            )
    return json.loads(result)


def print_progress(what: str) -> None:
    """Prints the current measurement, flushed for pipes."""
    print(f"  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
