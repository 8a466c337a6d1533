"""Prompt logprobs do not depend on the engine's configuration."""

import pytest

from tests.engine.hybrid import build
from tests.engine.support import PARAGRAPH, finish
from tiny_llm import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=3, prompt_logprobs=2)


@pytest.fixture(scope="module")
def reference(demo):
    [output] = LLM(demo, kv_cache_bytes=2**24).generate(PARAGRAPH, PARAMS)
    return output


@pytest.mark.parametrize("chunk", [7, 64])
def test_prompt_logprobs_do_not_depend_on_chunks_or_prefix_cache(demo, reference, chunk):
    llm = LLM(
        demo, kv_cache_bytes=2**24, block_size=8, max_num_seqs=4, max_num_batched_tokens=4 + chunk
    )
    llm.generate(PARAGRAPH, SamplingParams(max_tokens=1))
    [output] = llm.generate(PARAGRAPH, PARAMS)
    assert output.num_cached_tokens == 0
    assert output.prompt_logprobs == reference.prompt_logprobs
    assert output.token_ids == reference.token_ids
    [cached] = llm.generate(PARAGRAPH, SamplingParams(temperature=0, max_tokens=3))
    assert cached.num_cached_tokens > 0
    assert cached.prompt_logprobs is None


def test_completions_share_prompt_logprobs(demo, reference):
    params = SamplingParams(max_tokens=2, n=2, seed=1, prompt_logprobs=2)
    [output] = LLM(demo, kv_cache_bytes=2**24, max_num_batched_tokens=40).generate(
        PARAGRAPH, params
    )
    assert output.prompt_logprobs == reference.prompt_logprobs


@pytest.mark.slow
def test_single_token_prompt(either_device, demo):
    [output] = LLM(demo, kv_cache_bytes=2**22).generate([17], PARAMS)
    assert output.prompt_logprobs == [None]


def test_prompt_logprobs_do_not_depend_on_preemption(demo, reference):
    """KV memory for 200 tokens: the second request is preempted while decoding."""
    llm = build(demo, 200, 0, block_size=4, max_num_seqs=3, max_num_batched_tokens=20)
    length = len(reference.prompt_token_ids)
    filler = SamplingParams(temperature=0, max_tokens=190 - length, ignore_eos=True)
    long = SamplingParams(temperature=0, max_tokens=60, prompt_logprobs=2, ignore_eos=True)
    requests = [llm.add_request([17] * length, filler), llm.add_request(PARAGRAPH, long)]
    requests.append(llm.add_request([*reference.prompt_token_ids, *[17] * 20], long))
    outputs = finish(llm)
    assert llm.scheduler.num_preemptions > 0
    assert outputs[requests[1]].prompt_logprobs == reference.prompt_logprobs
    assert outputs[requests[2]].prompt_logprobs[:length] == reference.prompt_logprobs
