"""Thinking budgets: forced end tokens, batch invariance, grammars."""

import mlx.core as mx
import pytest

from tests.engine.support import chat
from tiny_llm import LLM, SamplingParams, StructuredOutputs
from tiny_llm.engine.execution.sampler import SamplingRow, sample_tokens, to_ints
from tiny_llm.engine.scheduling.request import EngineRequest
from tiny_llm.engine.structured_output.thinking_budget import ThinkingBudget, thinking_tokens

START, END = 8, 9
QUESTION = chat("What is the capital of France?")


def test_forced_row_does_not_affect_other_rows():
    logits = mx.random.normal((3, 12))
    plain = SamplingRow(EngineRequest("a", [1], SamplingParams(temperature=0)), 0)
    budget = ThinkingBudget(1, 0, START, END, in_thinking=True)
    params = SamplingParams(temperature=2.0, top_p=0.5)
    thinking = EngineRequest("b", [1], params, thinking_budget=budget)
    tokens = to_ints(sample_tokens(logits, [plain, SamplingRow(thinking, 0), plain]))
    best = to_ints(mx.argmax(logits, axis=-1))
    assert tokens == [best[0], END, best[2]]


def think(llm, prompts=(QUESTION,), **params):
    params = {"temperature": 0, "max_tokens": 60} | params
    return llm.generate(list(prompts), SamplingParams(**params), enable_thinking=True)


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_body_follows_bounded_reasoning(llm, budget):
    [unlimited] = think(llm)
    [bounded] = think(llm, thinking_token_budget=budget)
    start, end = thinking_tokens(llm.tokenizer)
    assert unlimited.token_ids.index(end) > 6
    assert bounded.token_ids[: budget + 2] == [*unlimited.token_ids[: budget + 1], end]
    assert bounded.finish_reason == "stop"
    assert start not in bounded.token_ids[1:]
    [large] = think(llm, thinking_token_budget=500)
    assert large.token_ids == unlimited.token_ids


def test_same_tokens_in_a_batch_with_drafts_and_with_a_grammar(llm):
    params = {"temperature": 1.2, "seed": 5, "thinking_token_budget": 4}
    reference = [
        think(llm, [QUESTION], **params | {"seed": seed})[0].token_ids for seed in range(3)
    ]
    others = [SamplingParams(**params | {"seed": s, "max_tokens": 60}) for s in range(3)]
    with_ngrams = LLM("demo", kv_cache_bytes=2**25, speculative="ngram")
    with_draft_model = LLM("demo", kv_cache_bytes=2**25, draft_model="demo-draft")
    for engine in (llm, with_ngrams, with_draft_model):
        together = engine.generate([QUESTION] * 3, others, enable_thinking=True)
        assert [output.token_ids for output in together] == reference
    constraint = StructuredOutputs(choice=["tea", "coffee"])
    [constrained] = think(llm, structured_outputs=constraint, thinking_token_budget=4)
    assert constrained.text.partition("</think>")[2].strip() in ("tea", "coffee")
