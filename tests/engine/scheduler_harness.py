"""Test harness: a small scheduler, a model that repeats one token, random workloads."""

import random
from dataclasses import replace

from tests.engine.simulator import Simulation, answer_alone, random_workload
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.config import SchedulerConfig
from tiny_llm.engine.scheduling.outputs import ChunkOutput
from tiny_llm.engine.scheduling.request import EngineRequest
from tiny_llm.engine.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0)


def scheduler(listener=None, **changes) -> Scheduler:
    config = {
        "num_pages": 16,
        "page_size": 4,
        "max_num_batched_tokens": 8,
        "max_num_seqs": 3,
        "max_seq_len": 100,
    }
    return Scheduler(SchedulerConfig(**{**config, **changes}), listener)


def add(to: Scheduler, name: str, length: int, max_tokens: int | None = 5, first: int = 0):
    """Adds a request with the prompt `first`, `first` + 1 and so on."""
    request = EngineRequest(name, list(range(first, first + length)), GREEDY, max_tokens)
    to.add(request)
    return request


def step(of: Scheduler, token: int = 77, num_tokens: int = 1) -> list[tuple[str, int, int, int]]:
    """Runs a step that samples `token`, up to `num_tokens` times with draft tokens."""
    plan = of.schedule()
    results = {}
    for chunk in plan.chunks:
        if chunk.samples:
            count = min(num_tokens, 1 + chunk.num_drafts)
            results[chunk.request.request_id] = ChunkOutput([token] * count)
    of.update_from_output(plan, results)
    for chunk in plan.chunks:
        if chunk.request.num_output_tokens >= chunk.request.max_tokens:
            of.finish(chunk.request, "length")
    of.check_integrity()
    return [(c.request.request_id, c.start, c.end, c.num_drafts) for c in plan.chunks]


def run_random_workloads(count: int, **changes) -> int:
    """Checks random workloads: no starvation, no leaks, one finish each, budget respected.

    Args:
        count: number of workloads.
        changes: overrides of the engine configuration.

    Returns:
        Number of preempted requests.
    """
    rng, preemptions = random.Random(32), 0
    for _ in range(count):
        workload = random_workload(rng)
        workload.config = replace(workload.config, **changes)
        outcome = Simulation(workload).run()
        for name, reason in outcome.reasons.items():
            if reason in ("stop", "length"):
                expected = answer_alone(workload.arrivals[int(name)])
                answer = outcome.answers[name]
                assert answer == expected, f"request {name}: {answer}; alone {expected}; {workload}"
        preemptions += outcome.preemptions
    return preemptions
