"""`kv_cache_dtype="int8"`: capacity and accuracy."""

import pytest

from tests.engine.support import perplexity
from tiny_llm import LLM, load


def test_int8_holds_more_tokens_in_the_same_memory():
    def num_pages(kv_cache_dtype: str) -> int:
        llm = LLM("demo", kv_cache_bytes=2**24, kv_cache_dtype=kv_cache_dtype)
        return llm.scheduler.config.num_pages

    head_dim = load("demo")[0].args.head_dim
    assert num_pages("int8") / num_pages("auto") == pytest.approx(
        2 * head_dim / (head_dim + 4), rel=0.01
    )


@pytest.mark.slow
def test_perplexity_is_within_half_a_percent():
    assert perplexity(kv_cache_dtype="int8") == pytest.approx(perplexity(), rel=0.005)
