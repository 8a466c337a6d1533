"""`python -m tools.agent.evaluation`: evaluates the demo model on arithmetic.

Seeds are fixed: with the same machine and package versions, the report is reproducible.
"""

import argparse

from tiny_llm import LLM
from tiny_llm.agent import LocalModel
from tiny_llm.agent.evaluation import report, run_case
from tools.course.solution_flag import parse_with_tree
from tools.course.tasks import day_of

from .tasks import TASKS, agents, run_in


def main(num_seeds: int, temperature: float) -> None:
    """Runs each task once per seed and prints the report."""
    make_agent = agents(LocalModel(LLM("demo"), temperature, max_tokens=64))
    cases = [(task, number) for task in TASKS for number in range(num_seeds)]
    print(report([run_case(task, number, make_agent) for task, number in cases]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="runs of each task (10)")
    parser.add_argument("--temperature", type=float, default=0.8, metavar="T")
    args, tree = parse_with_tree(parser)
    run_in(tree, "tools.agent.evaluation", lambda: main(args.seeds, args.temperature), day_of(7, 5))
