"""Scheduler test harness: a small scheduler, a fake model, random workloads."""

import random
from dataclasses import replace

from tests.engine.simulator import Simulation, answer_alone, random_workload
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.config import SchedulerConfig
from tiny_llm.engine.scheduling.request import ChunkOutput, EngineRequest
from tiny_llm.engine.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0)


def scheduler(listener=None, **changes) -> Scheduler:
    config = {"num_pages": 16, "page_size": 4, "max_num_batched_tokens": 8, "max_num_seqs": 3}
    return Scheduler(SchedulerConfig(**{**config, "max_seq_len": 100, **changes}), listener)


def add(scheduler: Scheduler, name: str, length: int, max_tokens: int | None = 5, first: int = 0):
    request = EngineRequest(name, list(range(first, first + length)), GREEDY, max_tokens)
    scheduler.add(request)
    return request


def step(
    scheduler: Scheduler, token: int = 77, num_tokens: int = 1
) -> list[tuple[str, int, int, int]]:
    """Runs one step; each request samples `token`, up to `num_tokens` times.

    Returns:
        (request id, start, end, number of draft tokens) of each chunk.
    """
    plan = scheduler.schedule()
    results = {}
    for chunk in plan.chunks:
        if chunk.samples:
            count = min(num_tokens, 1 + chunk.num_drafts)
            results[chunk.request.request_id] = ChunkOutput([token] * count)
    scheduler.update_from_output(plan, results)
    for chunk in plan.chunks:
        if chunk.request.num_output_tokens >= chunk.request.max_tokens:
            scheduler.finish(chunk.request, "length")
    scheduler.check_integrity()
    return [(c.request.request_id, c.start, c.end, c.num_drafts) for c in plan.chunks]


def serve(scheduler: Scheduler, name: str, length: int, max_tokens: int = 5, first: int = 0):
    """Runs a request to its end, with any others."""
    request = add(scheduler, name, length, max_tokens, first)
    while not request.is_done:
        step(scheduler)
    return request


def finish(scheduler: Scheduler, token: int = 77) -> None:
    while scheduler.has_requests:
        step(scheduler, token)


def run_random_workloads(count: int, **changes) -> int:
    """Runs random workloads; checks invariants and outputs; counts preemptions.

    `changes` overrides fields of `SchedulerConfig`.
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
                assert answer == expected, (
                    f"request {name}: expected {expected}, as when served alone, got {answer}; "
                    f"{workload}"
                )
        preemptions += outcome.preemptions
    return preemptions
