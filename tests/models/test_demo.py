"""The shipped demo models: size, config and output for the example prompts."""

import pytest

from tiny_llm import LLM, Qwen3ModelWeek2, SamplingParams, load, simple_generate_with_kv_cache
from tiny_llm.demo import DRAFT_PATH, HYBRID_PATH, TARGET_PATH
from tiny_llm.demo.prompts import BATCH_PROMPTS, INTRODUCTION_PROMPT, SHARED_PARAGRAPH

# Text that each output must contain, in the order of BATCH_PROMPTS.
EXPECTED = [
    "Mira Holton",
    "keys and values",
    "Tavel",
    "Tokyo",
    "clocks",
    "17 + 25 = 42",
    "64 metres",
    "request",
    "September",
    "one token",
    "honey cake",
    "telescope",
    "Doran Vell",
    "weight",
    "Saturday",
    "tiny-llm",
]


def generate(demo, question: str, enable_thinking: bool) -> str:
    mlx_model, tokenizer = demo
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        enable_thinking=enable_thinking,
    )
    model = Qwen3ModelWeek2(mlx_model)
    return simple_generate_with_kv_cache(model, tokenizer, prompt, max_tokens=120)


@pytest.mark.parametrize(
    ("folder", "limit"),
    [(TARGET_PATH, 12e6), (DRAFT_PATH, 3e6), (HYBRID_PATH, 5.1e6)],
    ids=["target", "draft", "hybrid"],
)
def test_folder_size_is_limited(folder, limit):
    assert sum(file.stat().st_size for file in folder.iterdir()) <= limit


def test_configuration(demo):
    args = demo[0].args
    assert args.tie_word_embeddings
    assert args.head_dim == 128
    assert args.num_attention_heads > args.num_key_value_heads, (
        "expected more query heads than KV heads"
    )


def test_draft_and_target_share_a_tokenizer(demo):
    draft, tokenizer = load("demo-draft")
    assert tokenizer.get_vocab() == demo[1].get_vocab()
    assert draft.args.vocab_size == demo[0].args.vocab_size
    draft_bytes = (DRAFT_PATH / "model.safetensors").stat().st_size
    assert draft_bytes <= (TARGET_PATH / "model.safetensors").stat().st_size / 5


def test_any_text_round_trips(demo):
    text = "naïve Ωmega 数学 🙂 \x00\t<x>"
    assert demo[1].decode(demo[1].encode(text)) == text


def test_eight_prompts_share_a_paragraph():
    assert len(BATCH_PROMPTS) == 16
    assert sum(prompt.startswith(SHARED_PARAGRAPH) for prompt in BATCH_PROMPTS) == 8


@pytest.mark.parametrize("enable_thinking", [False, True])
@pytest.mark.parametrize(
    ("question", "expected"), list(zip(BATCH_PROMPTS, EXPECTED, strict=True)), ids=EXPECTED
)
def test_batch_prompts(demo, question, expected, enable_thinking):
    assert expected in generate(demo, question, enable_thinking).rpartition("</think>")[2]


@pytest.mark.parametrize("enable_thinking", [False, True])
def test_introduction(demo, enable_thinking):
    text = generate(demo, INTRODUCTION_PROMPT, enable_thinking).rpartition("</think>")[2]
    assert "predict the next token" in text


@pytest.mark.slow
@pytest.mark.parametrize("enable_thinking", [False, True])
def test_hybrid_answers_the_same_prompts(enable_thinking):
    prompts = [
        [{"role": "user", "content": text}] for text in (*BATCH_PROMPTS, INTRODUCTION_PROMPT)
    ]
    params = SamplingParams(temperature=0, max_tokens=120)
    outputs = LLM("demo-hybrid", kv_cache_bytes=2**26).generate(
        prompts, params, enable_thinking=enable_thinking
    )
    for output, expected in zip(outputs, [*EXPECTED, "predict the next token"], strict=True):
        assert expected in output.text.rpartition("</think>")[2]
