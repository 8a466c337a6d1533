"""Week 1, day 6: generating text."""

import mlx.core as mx
import pytest

from tests.support import ByteTokenizer, ScriptedModel, chat_prompt, tiny_model
from tiny_llm import (
    Qwen3ModelWeek1,
    UserError,
    decode_by_recomputing,
    simple_generate,
    stream_generate,
)

PROMPT = "ask"


def responses_of(model, prompt: str = PROMPT, **options):
    return list(stream_generate(decode_by_recomputing, model, ByteTokenizer(), prompt, **options))


def scripted(answer: bytes, end: int = 0) -> ScriptedModel:
    return ScriptedModel(len(PROMPT), [*answer, end])


@pytest.mark.parametrize("end", [0, 1])
def test_task_1_stops_at_any_eos_token(end):
    assert simple_generate(scripted(b"hello", end), ByteTokenizer(), PROMPT) == "hello"


def test_task_1_every_step_recomputes_the_whole_sequence():
    model = scripted(b"abc")
    simple_generate(model, ByteTokenizer(), PROMPT)
    sequence = list(PROMPT.encode()) + list(b"abc")
    assert model.calls == [sequence[:end] for end in range(3, 7)], "no chat template is added"


def test_task_1_prompt_and_max_tokens():
    assert simple_generate(scripted(b"hello"), ByteTokenizer(), [97, 115, 107]) == "hello"
    assert simple_generate(scripted(b"hello"), ByteTokenizer(), PROMPT, max_tokens=3) == "hel"


def test_task_1_multi_token_characters():
    text = "é — 数 🙂"
    responses = responses_of(scripted(text.encode()))
    assert "".join(response.text for response in responses) == text
    assert all("\ufffd" not in response.text for response in responses)
    # The first byte of a two-byte character must not be dropped silently.
    model = scripted("é".encode())
    assert simple_generate(model, ByteTokenizer(), PROMPT, max_tokens=1) == "\ufffd"


def test_task_1_statistics():
    responses = responses_of(scripted(b"hello"))
    assert [response.generation_tokens for response in responses] == [1, 2, 3, 4, 5, 6]
    assert [response.finish_reason for response in responses] == [None] * 5 + ["stop"]
    assert responses[-1].prompt_tokens == 3
    assert responses_of(scripted(b"hello"), max_tokens=2)[-1].finish_reason == "length"


def test_task_1_greedy_by_default(device):
    model = Qwen3ModelWeek1(tiny_model(vocab_size=256))
    tokens = [r.token for r in responses_of(model, max_tokens=8)]
    ids = list(PROMPT.encode())
    for token in tokens:
        assert token == mx.argmax(model(mx.array([ids]))[0, -1]).item()
        ids.append(token)


def test_task_1_sampler_receives_logprobs():
    seen = []

    def sampler(logprobs: mx.array) -> mx.array:
        seen.append(logprobs)
        return mx.argmax(logprobs, axis=-1)

    simple_generate(scripted(b"hi"), ByteTokenizer(), PROMPT, sampler)
    assert all(logprobs.shape == (1, 256) for logprobs in seen), (
        "expected B×V logprobs of the last position"
    )
    assert all(abs(mx.exp(logprobs).sum().item() - 1) < 1e-5 for logprobs in seen)


def test_task_1_stops_at_max_seq_len():
    model = Qwen3ModelWeek1(tiny_model(vocab_size=256, max_position_embeddings=10))
    responses = responses_of(model, "12345678")
    assert len(responses) <= 2
    assert responses[-1].finish_reason is not None


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "message"),
    [
        ("", None, "prompt is empty"),
        ([], None, "prompt is empty"),
        ("x" * 128, None, "128 tokens, but the model's context length is 128"),
        ("x", 0, "max_tokens must be at least 1, got 0"),
        ([1, 256], None, "must be from 0 to 255, got 256"),
        ([-1, 3], None, "must be from 0 to 255, got -1"),
    ],
)
def test_task_1_invalid_request_is_rejected(prompt, max_tokens, message):
    model = Qwen3ModelWeek1(tiny_model(vocab_size=256))
    with pytest.raises(UserError, match=message):
        simple_generate(model, ByteTokenizer(), prompt, max_tokens=max_tokens)


def test_task_1_demo_model_output(demo):
    mlx_model, tokenizer = demo
    prompt = tokenizer.decode(chat_prompt(tokenizer, "What is the capital of France?"))
    answer = simple_generate(Qwen3ModelWeek1(mlx_model), tokenizer, prompt, max_tokens=30)
    assert "Paris" in answer
