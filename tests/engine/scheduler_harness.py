"""Scheduler test harness: a small scheduler, a fake model, random workloads."""

import random
from collections.abc import Sequence
from dataclasses import replace

from tests.engine.simulator import random_workload, run_and_compare
from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.config import SchedulerConfig
from tiny_llm.engine.scheduling.request import ChunkOutput, EngineRequest
from tiny_llm.engine.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0)


def scheduler(listener=None, **changes) -> Scheduler:
    config = {"num_pages": 16, "page_size": 4, "max_num_batched_tokens": 8, "max_num_seqs": 3}
    return Scheduler(SchedulerConfig(**{**config, "max_seq_len": 100, **changes}), listener)


def add(
    scheduler: Scheduler,
    name: str,
    prompt: int | Sequence[int],
    max_tokens: int | None = 5,
    first: int = 0,
) -> EngineRequest:
    """Adds a request with the prompt, or with so many tokens from `first` on."""
    token_ids = range(first, first + prompt) if isinstance(prompt, int) else prompt
    request = EngineRequest(name, list(token_ids), GREEDY, max_tokens)
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


def serve(scheduler: Scheduler, name: str, *args, **options) -> EngineRequest:
    """Adds a request and runs it to its end, with any others."""
    request = add(scheduler, name, *args, **options)
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
        preemptions += run_and_compare(workload).preemptions
    return preemptions
