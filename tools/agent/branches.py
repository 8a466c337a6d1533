"""`python -m tools.agent.branches`: forks an agent run.

The demo model solves a subtraction in several sampled branches. Two methods select a
branch: a check of the result files, and a majority vote over the answers. Prints the KV cache pages
that the branches share.
"""

import argparse
import tempfile
from pathlib import Path

from tiny_llm import LLM
from tiny_llm.agent import LocalModel
from tiny_llm.agent.branches import Branch, count_pages, fork, select, vote
from tools.course.solution_flag import parse_with_tree
from tools.course.tasks import day_of

from .tasks import RESULT, TASKS, agents, run_in

TEMPERATURE = 0.8
TASK = TASKS[-1]


def show(number: int, branch: Branch) -> str:
    """One-line summary of a branch: tool calls, contents of the result file, final answer."""
    calls = [
        f"{call['function']['name']}{call['function']['arguments']}"
        for message in branch.transcript.messages
        for call in message.get("tool_calls", ())
    ]
    file = branch.workspace / RESULT
    result = file.read_text(encoding="utf-8") if file.exists() else "no file"
    answer = branch.transcript.answer or "no answer"
    return f"branch {number}: {', '.join(calls) or 'no call':34} {result:9} {answer}"


def main(count: int, seed: int) -> None:
    """Forks an agent run into `count` branches; prints their results and KV cache pages."""
    llm = LLM("demo")
    model = LocalModel(llm, TEMPERATURE, max_tokens=64)
    make_agent = agents(model)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "run").mkdir()
        agent = make_agent(folder / "run")
        branches = fork(agent.start(TASK.prompt), folder / "run", count, folder, seed)
        print(TASK.prompt)
        for number, branch in enumerate(branches):
            branch.run(make_agent)
            print(show(number, branch), flush=True)
        for method, chosen in (("file", select(branches, TASK.check)), ("vote", vote(branches))):
            print(f"by {method}:", "none" if chosen is None else f"branch {branches.index(chosen)}")
    pages = [
        model.cached_pages(branch.transcript.context, agent.definitions) for branch in branches
    ]
    print(f"\npages of {llm.scheduler.config.page_size} tokens")
    for number, page_ids in enumerate(pages):
        print(f"branch {number}:", " ".join(f"{page:2}" for page in page_ids))
    counts = count_pages(pages)
    saved = counts.saved * sum(model.row_bytes("page") for model in llm.runner.models)
    print(f"{counts.stored} pages, {counts.shared} of them shared")
    print(f"saved by sharing: {counts.saved} pages, {saved / 1e6:.1f} MB")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--count", type=int, default=4, metavar="N", help="number of branches (4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    args, tree = parse_with_tree(parser)
    run_in(tree, "tools.agent.branches", lambda: main(args.count, args.seed), day_of(7, 4))
