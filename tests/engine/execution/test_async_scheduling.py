"""Async scheduling: launching steps ahead does not change outputs."""

import mlx.core as mx
import pytest

from tiny_llm import LLM, SamplingParams

PROMPTS = ["What is a cat?", "Who are you?", "Tell me about the moon.", "Hello!", "What is RoPE?"]


def params(index: int) -> SamplingParams:
    """Sampling parameters of request `index`: greedy or seeded, varied lengths."""
    return SamplingParams(
        max_tokens=3 + 7 * (index % 3),
        temperature=index % 2,
        seed=index,
        ignore_eos=index % 4 == 0,
        logprobs=2 if index == 2 else None,
        repetition_penalty=1.2 if index == 3 else 1.0,
        stop=["the"] if index == 1 else None,
    )


def run_requests(demo, look_ahead: bool, **options):
    """Serves requests that arrive during decoding; returns outputs and counters."""
    llm = LLM(demo, kv_cache_bytes=options.pop("bytes", 4e6), **options)
    llm.runner.async_scheduling.enabled = look_ahead
    waiting = list(enumerate(PROMPTS * 2))
    outputs = {}
    while waiting or llm.has_unfinished_requests:
        for index, prompt in waiting[:2]:
            llm.add_request(prompt, params(index), request_id=str(index))
        waiting = waiting[2:]
        for _ in range(4):
            for update in llm.step():
                outputs[update.request_id] = update.request_output
    actual = {
        name: [(c.token_ids, c.logprobs, c.finish_reason) for c in output.outputs]
        for name, output in outputs.items()
    }
    return actual, llm.runner.async_scheduling


@pytest.mark.parametrize(
    "options",
    [{}, {"block_size": 4}, {"enable_prefix_caching": False}, {"block_size": 4, "bytes": 3e5}],
    ids=["default", "small pages", "no prefix caching", "preemption"],
)
def test_same_outputs_with_and_without_async_scheduling(on_cpu, demo, options):
    expected, _ = run_requests(demo, False, **options)
    actual, look_ahead = run_requests(demo, True, **options)
    assert actual == expected
    assert look_ahead.num_hits > 5, "expected some launched steps to be used"
    assert look_ahead.num_misses > 0, "expected some launched steps to be discarded"


def test_most_steps_of_a_single_request_are_launched_ahead(on_cpu, demo):
    llm = LLM(demo, kv_cache_bytes=4e6)
    llm.runner.async_scheduling.enabled = True
    sampling_params = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True)
    llm.generate(PROMPTS[0], sampling_params, use_tqdm=False)
    # One step in 32 needs a new page. Only the scheduler allocates pages, so this step must wait.
    assert llm.runner.async_scheduling.num_hits >= 37
    assert llm.runner.async_scheduling.num_misses == 0


def test_outputs_are_dispatched_before_the_next_step(on_cpu, demo, monkeypatch):
    """Reading an array waits for everything that was submitted with it."""
    submissions = []
    async_eval = mx.async_eval
    monkeypatch.setattr(
        mx, "async_eval", lambda *arrays: submissions.append(arrays) or async_eval(*arrays)
    )
    llm = LLM(demo, kv_cache_bytes=4e6)
    llm.runner.async_scheduling.enabled = True
    sampling_params = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True, logprobs=2)
    llm.generate(PROMPTS[:2], sampling_params, use_tqdm=False)
    kinds = ["logits" if arrays[0].ndim == 2 else "tokens" for arrays in submissions]
    assert kinds[:7] == ["logits", *["tokens", "logits"] * 3]
    # Token ids, NaN flags, ids of the most likely tokens, and logprobs of these tokens.
    assert all(len(arrays) == 4 for arrays in submissions if arrays[0].ndim == 1)


def test_disabled_on_cpu(on_cpu, demo):
    llm = LLM(demo, kv_cache_bytes=4e6)
    llm.generate(PROMPTS[0], SamplingParams(max_tokens=5), use_tqdm=False)
    assert llm.runner.async_scheduling.num_hits == 0
