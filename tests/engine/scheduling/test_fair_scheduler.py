"""`FairScheduler`: overtaking, step time target. The simulator checks protection."""

import pytest

from tests.engine.scheduler_harness import GREEDY, step
from tiny_llm.engine.scheduling.config import SchedulerConfig
from tiny_llm.engine.scheduling.fair_scheduler import (
    LONG_STEP_INTERVAL,
    NUM_SAMPLES,
    FairScheduler,
    PromptCosts,
)
from tiny_llm.engine.scheduling.request import ChunkOutput, EngineRequest


def fair_scheduler(step_time_target=None, **changes) -> FairScheduler:
    config = {"num_pages": 100, "page_size": 16, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    config = SchedulerConfig(**{**config, "max_seq_len": 1600, **changes})
    return FairScheduler(config, step_time_target=step_time_target)


def request(name: str, num_tokens: int, first: int = 0, max_tokens: int = 4) -> EngineRequest:
    return EngineRequest(name, range(first, first + num_tokens), GREEDY, max_tokens)


def run_step(scheduler: FairScheduler) -> dict[str, int]:
    """Runs a step; returns the number of tokens of each request's chunk."""
    return {name: end - start for name, start, end, _ in step(scheduler)}


def test_protected_request_that_loads_from_disk_does_not_delay_younger_ones():
    sched = fair_scheduler()
    protected, younger = request("protected", 40), request("younger", 20, first=500)
    sched.start_load = lambda request: 32 if request is protected else 0
    for added in (protected, younger):
        sched.add(added)
    protected.num_overtaken = protected.num_prompt_tokens
    assert run_step(sched) == {"younger": 20}
    sched.finish_load(protected, 32)
    assert run_step(sched) == {"younger": 1, "protected": 8}


def test_short_prompt_overtakes_queued_long_prompts():
    scheduler = fair_scheduler()
    for index in range(3):
        scheduler.add(request(f"long {index}", 480, first=1000 * index))
    run_step(scheduler)
    scheduler.add(request("short", 20, first=9000))
    assert run_step(scheduler) == {"short": 20, "long 0": 44}
    assert [r.request_id for r in scheduler.running] == ["long 0", "short"]
    assert [r.request_id for r in scheduler.waiting] == ["long 1", "long 2"]
    scheduler.check_integrity()


def test_overtaking_is_limited_by_the_length_of_the_prompt():
    scheduler = fair_scheduler()
    scheduler.add(request("long", 300))
    run_step(scheduler)
    overtaking_tokens = 0
    for number in range(30):  # a new prompt fills each step's token budget
        scheduler.add(request(f"short {number}", 64, first=1000 * (number + 1), max_tokens=1))
        tokens = run_step(scheduler)
        if "long" in tokens:
            break
        overtaking_tokens += sum(tokens.values())
    assert overtaking_tokens == 320  # the prompt's 300 tokens, rounded up to whole chunks of 64
    assert tokens == {"long": 64}


def test_cached_prompt_counts_as_short():
    scheduler = fair_scheduler()
    scheduler.add(request("first", 320, max_tokens=1))
    while scheduler.has_requests:
        run_step(scheduler)
    scheduler.add(request("long", 480, first=2000))
    run_step(scheduler)
    scheduler.add(request("next turn", 330))  # of which 320 tokens are cached
    assert run_step(scheduler)["next turn"] == 10


def test_step_time_target_applies_only_if_requests_decode():
    scheduler = fair_scheduler(step_time_target=0.1)
    scheduler.costs.record(100, 32, seconds=0.09)
    decoding = request("decoding", 20, max_tokens=50)
    scheduler.add(decoding)
    assert run_step(scheduler) == {"decoding": 20}
    scheduler.add(request("long", 300, first=1000))
    assert run_step(scheduler) == {"decoding": 1, "long": 32}
    scheduler.finish(decoding, "abort")
    assert run_step(scheduler) == {"long": 64}


def test_prompt_costs_track_step_times():
    costs = PromptCosts()
    assert costs.seconds_per_token(1000) == 0
    costs.record(1000, 100, seconds=0.4)
    assert costs.seconds_per_token(600) == 0.004
    assert costs.seconds_per_token(10) == costs.seconds_per_token(5000) == 0.004, (
        "expected the cost at the nearest position"
    )
    costs.record(5000, 100, seconds=1)
    assert costs.seconds_per_token(5000) == 0.01
    costs.record(1000, 100, seconds=0.3)
    costs.record(1000, 100, seconds=0.2)
    assert costs.seconds_per_token(1000) == 0.003, "expected the second highest of three samples"
    costs.record(1000, 100, seconds=20)
    assert costs.seconds_per_token(1000) == 0.004, (
        "a single slow step must not change the cost by much"
    )
    for _ in range(NUM_SAMPLES):
        costs.record(1000, 100, seconds=0.1)
    assert costs.seconds_per_token(1000) == 0.001, "old samples must be dropped"


def step_seconds(step):
    """Modeled step time of Qwen3-0.6B on two cores, including attention to keys."""
    prompts = [chunk for chunk in step.chunks if chunk.end - chunk.start > 1]
    keys = sum(4e-6 * chunk.end for chunk in prompts)
    return 0.012 + keys + sum(c.num_tokens * (1.2e-3 + 5.8e-7 * c.end) for c in prompts)


def serve_long_prompt_and_chat(step_time_target, chat_at=10_000):
    """Serves a decoding stream, a long prompt and a late chat in virtual time.

    Returns:
        (step durations, tokens per second, the chat's time to first token in seconds).
    """
    options = {"max_num_batched_tokens": 256, "num_pages": 2000, "max_seq_len": 20_000}
    scheduler = fair_scheduler(step_time_target, **options)
    scheduler.add(request("stream", 30, first=50_000, max_tokens=5000))
    run_step(scheduler)
    long, chat = request("long", 12_000), request("chat", 60, first=90_000, max_tokens=1)
    scheduler.add(long)
    durations, num_tokens, waited = [], 0, 0.0
    while long.num_output_tokens == 0:
        if chat.arrival_index < 0 and long.num_computed > chat_at:
            scheduler.add(chat)
        step = scheduler.schedule()
        durations.append(step_seconds(step))
        waited += durations[-1] * (chat.arrival_index >= 0 and chat.num_output_tokens == 0)
        num_tokens += step.num_tokens
        scheduler.record_step_time(step, durations[-1])
        results = {c.request.request_id: ChunkOutput([1]) for c in step.chunks if c.samples}
        scheduler.update_from_output(step, results)
        if chat.num_output_tokens:
            scheduler.finish(chat, "length")
    return durations, num_tokens / sum(durations), waited


def test_inter_token_latency_during_a_long_prompt():
    _, unlimited_rate, _ = serve_long_prompt_and_chat(None)
    durations, rate, waited = serve_long_prompt_and_chat(0.1)
    assert sorted(durations)[len(durations) * 95 // 100] < 0.1
    assert max(durations) < 1.2, (
        "expected long steps of about LONG_STEP_FACTOR times the target at most"
    )
    assert rate > 0.85 * unlimited_rate
    assert waited < 0.4, "the chat's 60 tokens must not wait for the long prompt"


@pytest.mark.parametrize(("seconds", "interval"), [(0.01, LONG_STEP_INTERVAL), (0.25, 3)])
def test_long_steps_are_rare(seconds, interval):
    """The next one follows after 24 steps, or after as much time as the last one took."""
    scheduler = fair_scheduler(step_time_target=0.1)
    scheduler.costs.record(100, 1, seconds=0.01)  # 10 ms per token, so ten tokens fit the target
    scheduler.add(request("decoding", 20, max_tokens=90))
    run_step(scheduler)
    scheduler.add(request("long", 300, first=1000))
    step = scheduler.schedule()
    assert [chunk.num_tokens for chunk in step.chunks] == [1, 63], (
        "a long step must use the whole token budget"
    )
    scheduler.update_from_output(step, {"decoding": ChunkOutput([1])})
    scheduler.record_step_time(step, seconds=0.6)
    for _ in range(interval):
        step = scheduler.schedule()
        assert [chunk.num_tokens for chunk in step.chunks] == [1]
        scheduler.update_from_output(step, {"decoding": ChunkOutput([1])})
        scheduler.record_step_time(step, seconds)
    assert len(scheduler.schedule().chunks) == 2
