"""Test harness: a small scheduler and a model that repeats one token."""

from tiny_llm.engine.inputs.sampling_params import SamplingParams
from tiny_llm.engine.scheduling.batch import ChunkOutput
from tiny_llm.engine.scheduling.config import SchedulerConfig
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
