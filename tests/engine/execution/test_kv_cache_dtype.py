"""8-bit pages and activations: capacity and accuracy."""

import math
from pathlib import Path

import numpy as np
import pytest

from tiny_llm import LLM, SamplingParams, kernels, load


def test_int8_holds_more_tokens_in_the_same_memory():
    def num_pages(kv_cache_dtype: str) -> int:
        llm = LLM("demo", kv_cache_bytes=2**24, kv_cache_dtype=kv_cache_dtype)
        return llm.scheduler.config.num_pages

    head_dim = load("demo")[0].args.head_dim
    assert num_pages("int8") / num_pages("auto") == pytest.approx(
        2 * head_dim / (head_dim + 4), rel=0.01
    )


@pytest.mark.slow
def test_perplexity_on_the_readme():
    text = (Path(__file__).parents[3] / "README.md").read_text()[:3000]
    params = SamplingParams(max_tokens=1, prompt_logprobs=0)

    def perplexity(**options) -> float:
        [output] = LLM("demo", **options).generate([text], params, use_tqdm=False)
        entries = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        return math.exp(-np.mean([entry[token] for token, entry in entries]))

    exact = perplexity()
    assert perplexity(kv_cache_dtype="int8") == pytest.approx(exact, rel=0.005)
    if kernels.prepack_rows():  # CPU kernels with vector instructions
        rounded = perplexity(activation_bits=8)
        assert rounded != exact
        assert rounded == pytest.approx(exact, rel=0.01)
