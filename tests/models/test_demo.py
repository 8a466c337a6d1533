"""The shipped demo models: size, config and output for the example prompts."""

import pytest

from tiny_llm import LLM, SamplingParams, load
from tiny_llm.demo import (
    BATCH_PROMPTS,
    DRAFT_PATH,
    HYBRID_PATH,
    INTRODUCTION_PROMPT,
    SHARED_PARAGRAPH,
    TARGET_PATH,
)

# Text that each output must contain, in the order of BATCH_PROMPTS and the introduction.
QUESTIONS = [*BATCH_PROMPTS, INTRODUCTION_PROMPT]
EXPECTED = [
    *("Mira Holton", "keys and values", "Tavel", "Tokyo", "clocks", "17 + 25 = 42", "64 metres"),
    *("request", "September", "one token", "honey cake", "telescope", "Doran Vell", "weight"),
    *("Saturday", "tiny-llm", "predict the next token"),
]


@pytest.mark.parametrize(
    ("folder", "limit"),
    [(TARGET_PATH, 12e6), (DRAFT_PATH, 3e6), (HYBRID_PATH, 5.1e6)],
    ids=["target", "draft", "hybrid"],
)
def test_folder_size_is_limited(folder, limit):
    assert sum(file.stat().st_size for file in folder.iterdir()) <= limit


def test_config_and_prompts_of_the_demo(demo):
    """The course's chapters rely on these."""
    args = demo[0].args
    assert args.tie_word_embeddings
    assert args.head_dim == 128
    assert args.num_attention_heads > args.num_key_value_heads
    assert load("demo-draft")[0].args.vocab_size == args.vocab_size
    assert len(BATCH_PROMPTS) == 16
    assert sum(prompt.startswith(SHARED_PARAGRAPH) for prompt in BATCH_PROMPTS) == 8


@pytest.mark.parametrize("enable_thinking", [False, True])
@pytest.mark.parametrize("name", ["demo", pytest.param("demo-hybrid", marks=pytest.mark.slow)])
def test_answers(name, enable_thinking):
    prompts = [[{"role": "user", "content": text}] for text in QUESTIONS]
    params = SamplingParams(temperature=0, max_tokens=120)
    llm = LLM(name, kv_cache_bytes=2**26)
    outputs = llm.generate(prompts, params, enable_thinking=enable_thinking)
    for output, expected in zip(outputs, EXPECTED, strict=True):
        assert expected in output.text.rpartition("</think>")[2]
