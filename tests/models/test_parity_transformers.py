"""Our model against Hugging Face's own Qwen3: logits, and greedy text token for token."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy, token_prompts
from tiny_llm import Qwen3ModelWeek1, load

torch = pytest.importorskip("torch", reason="`pdm run install-torch` installs it")
transformers = pytest.importorskip("transformers")

QUESTIONS = [
    "What is the capital of France?",
    "What is the capital of Japan?",
    "Name the capital of Peru.",
    "Which country has Rome as its capital?",
    "What is the KV cache?",
    "What is RoPE?",
    "Explain grouped-query attention.",
    "What is paged attention?",
    "Why is decode slow?",
    "What is the difference between prefill and decode?",
    "What is 17 + 25?",
    "What is 6 times 7?",
    "What is 50 - 8?",
    "How many days are in a week?",
    "What colour is the sky?",
    "What is the opposite of hot?",
    "Who are you?",
    "Hello!",
    "Give me a short introduction to large language model.",
    "Mira lives in Tavel. She is a baker.\n\nWhere does Mira live?",
    "What do bees make?",
    "Which planet is the largest?",
    "tell me about speculative decoding",
    "Ein Satz auf Deutsch, den das Modell nicht kennt: äöüß.",
]
NEW_TOKENS = 20


def hugging_face(folder: Path, dtype: "torch.dtype") -> "transformers.PreTrainedModel":
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@pytest.mark.slow
@pytest.mark.parametrize("enable_thinking", [False, True])
def test_demo_model_greedy_tokens(demo_bfloat16_folder, enable_thinking):
    theirs = hugging_face(demo_bfloat16_folder, torch.float32)
    mlx_model, tokenizer = load(str(demo_bfloat16_folder))
    mlx_model.set_dtype(mx.float32)
    ours = Qwen3ModelWeek1(mlx_model)
    for question in QUESTIONS:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            enable_thinking=enable_thinking,
        )
        with torch.no_grad():
            sequence = theirs.generate(
                torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False
            )[0].tolist()
        expected = sequence[len(prompt) :]
        # One causal pass over prompt and answer predicts each token of the answer from those
        # before it, as a decoding loop that has agreed so far would.
        logits = ours(mx.array([sequence]))[0, len(prompt) - 1 : -1]
        assert mx.argmax(logits, axis=-1).tolist() == expected, f"greedy tokens for {question!r}"


def test_demo_model_logits_bfloat16(demo_bfloat16_folder):
    theirs = hugging_face(demo_bfloat16_folder, torch.bfloat16)
    mlx_model, tokenizer = load(str(demo_bfloat16_folder))
    ids = tokenizer.encode("The KV cache keeps keys and values.")
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits.float().numpy()
    actual = as_numpy(Qwen3ModelWeek1(mlx_model)(mx.array([ids])))
    # Eight layers of bfloat16 roundings, in another order: relative to the logits' own size.
    assert np.abs(actual - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(("H_q", "H", "head_dim"), [(4, 2, 16), (6, 3, 10), (2, 1, 32)])
def test_random_model_logits_float32(tmp_path, tied, H_q, H, head_dim):
    torch.manual_seed(0)
    config = transformers.Qwen3Config(
        vocab_size=211,
        hidden_size=40,
        intermediate_size=72,
        num_hidden_layers=3,
        num_attention_heads=H_q,
        num_key_value_heads=H,
        head_dim=head_dim,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        rms_norm_eps=1e-6,
        rope_theta=10_000.0,
    )
    theirs = transformers.Qwen3ForCausalLM(config).eval()
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            else:
                parameter.copy_(torch.randn_like(parameter) * parameter.shape[1] ** -0.5)
    theirs.save_pretrained(tmp_path)

    from mlx_lm.utils import load_model

    ours = Qwen3ModelWeek1(load_model(tmp_path)[0])
    for ids in token_prompts(count=5, length=5, vocab_size=211):
        ids = (ids * 20)[:77]
        with torch.no_grad():
            expected = theirs(torch.tensor([ids])).logits.numpy()
        np.testing.assert_allclose(as_numpy(ours(mx.array([ids]))), expected, atol=1e-4)
