"""Agent branches and evaluation on the engine: shared pages, same reports."""

from tiny_llm import LLM
from tiny_llm.agent import Agent, LocalModel, ScriptedModel, assistant
from tiny_llm.agent.branches import count_pages, fork
from tiny_llm.agent.evaluation import EvalTask, report, run_case
from tiny_llm.agent.tools import calculator


def test_branches_share_the_pages_of_the_fork(tmp_path):
    llm = LLM("demo", kv_cache_bytes=2**25)

    def script(messages, seed):
        if messages[-1]["role"] == "user":
            return assistant(None, ("add", {"a": seed % 1000, "b": 1}))
        return assistant(f"It is {messages[-1]['content']}.")

    model = LocalModel(llm, script=ScriptedModel(script))
    agent = Agent(model, calculator())
    (tmp_path / "run").mkdir()
    branches = fork(agent.start("Add 1 to your number."), tmp_path / "run", 3, tmp_path)
    for branch in branches:
        branch.run(lambda workspace: agent)
    assert len({branch.transcript.answer for branch in branches}) == 3
    contexts = [branch.transcript.context for branch in branches]
    pages = [model.cached_pages(context, agent.definitions) for context in contexts]
    fork_pages = model.cached_pages(contexts[0][:1], agent.definitions)
    counts = count_pages(pages)
    n = len(fork_pages)
    assert all(branch_pages[:n] == fork_pages for branch_pages in pages), (
        "branches must share the fork's pages"
    )
    assert counts.shared >= n > 10
    assert counts.saved >= 2 * n
    cached = {node.page for node in llm.scheduler.pages.cache.nodes()}
    assert {page for branch_pages in pages for page in branch_pages} <= cached


def test_report_is_reproducible_and_independent_of_the_cache():
    """The second evaluation hits the prefix cache and runs in reverse order."""
    model = LocalModel(LLM("demo", kv_cache_bytes=2**25), 0.8, max_tokens=40)
    tasks = [
        EvalTask(name, prompt, lambda workspace: False)
        for name, prompt in (("add", "What is 12 + 7?"), ("multiply", "What is 3 times 9?"))
    ]
    cases = [(task, number) for task in tasks for number in range(2)]

    def make_agent(workspace):
        return Agent(model, calculator(), 3)

    first = report([run_case(*case, make_agent) for case in cases])
    cached = model.usage.cached_tokens
    assert report([run_case(*case, make_agent) for case in reversed(cases)]) == first
    assert model.usage.cached_tokens > 2 * cached
