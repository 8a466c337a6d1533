"""Arithmetic tasks that the demo model sometimes solves."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tiny_llm.agent import Agent, ChatModel, Tool
from tiny_llm.agent.branches import Check, MakeAgent
from tiny_llm.agent.evaluation import EvalTask
from tiny_llm.agent.tools import calculator
from tiny_llm.errors import TaskNotImplemented

from ..course.solution_flag import restart_in_tree
from ..course.tasks import Day

RESULT = "result.txt"


def with_result_file(tool: Tool, workspace: Path) -> Tool:
    """Wraps a tool so that it also writes its result to the file `RESULT` in the workspace."""

    def function(**arguments: float) -> str:
        result = tool.function(**arguments)
        (workspace / RESULT).write_text(result, encoding="utf-8")
        return result

    return replace(tool, function=function)


def agents(model: ChatModel) -> MakeAgent:
    """Factory of agents whose calculator writes results to their workspace."""

    def make_agent(workspace: Path) -> Agent:
        return Agent(
            model, [with_result_file(tool, workspace) for tool in calculator()], max_steps=4
        )

    return make_agent


def result_is(expected: int) -> Check:
    """A check that the file `RESULT` contains the expected number."""
    return lambda workspace: float((workspace / RESULT).read_text(encoding="utf-8")) == expected


TASKS = (
    EvalTask("add", "What is 4718 + 2593?", result_is(7311)),
    EvalTask("multiply", "What is 37 times 48?", result_is(1776)),
    EvalTask("subtract", "Subtract 512 from 9001.", result_is(8489)),
)


def run_in(tree: Path | None, module: str, main: Callable[[], None], day: Day) -> None:
    """Calls `main` in a process that imports the `tiny_llm` of `tree`.

    Restarts with `python -m module` if this process would import another `tiny_llm`. `tree` is the
    learner's source tree, or None for the solution; `day`: see `restart_in_tree`.
    Exits with status 2 if a task is unwritten.
    """
    restart_in_tree(tree, module, day=day)
    try:
        main()
    except TaskNotImplemented as error:
        print(error, file=sys.stderr)
        sys.exit(2)
