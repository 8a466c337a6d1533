"""Week 2, day 1: the KV cache, and the model that uses it."""

import mlx.core as mx
import mlx.nn as nn
import pytest

from tests.support import ByteTokenizer, assert_close, random, tiny_model
from tiny_llm import (
    Qwen3ModelWeek1,
    Qwen3ModelWeek2,
    TinyKvFullCache,
    simple_generate,
    simple_generate_with_kv_cache,
)

IDS = [3, 17, 130, 0, 3, 99, 5, 41, 8, 77, 2]


@pytest.mark.parametrize("chunks", [[1], [5], [1, 1, 1], [7, 1, 128, 1], [255, 1, 1], [300, 400]])
def test_task_1_holds_what_was_written(device, dtype, chunks):
    cache = TinyKvFullCache()
    keys, values = [], []
    for length in chunks:
        keys.append(random(2, 3, length, 8, dtype=dtype))
        values.append(random(2, 3, length, 8, dtype=dtype))
        fetched = cache.update_and_fetch(keys[-1], values[-1], mask_length=length, mask="causal")
        all_keys, all_values = mx.concatenate(keys, axis=2), mx.concatenate(values, axis=2)
        assert_close(fetched[0], all_keys, "keys, the oldest first", ulps=0)
        assert_close(fetched[1], all_values, "values, the oldest first", ulps=0)
        assert fetched[2] == cache.offset == all_keys.shape[2]
        assert fetched[3] == "causal", "the mask is passed through"
    assert cache.key_values[0].shape[2] == sum(chunks)


def test_task_1_rewind(device):
    cache = TinyKvFullCache()
    key = random(1, 2, 10, 8)
    cache.update_and_fetch(key, key)
    cache.rewind(4)
    assert cache.offset == 6
    new = random(1, 2, 3, 8)
    keys, _, S, _ = cache.update_and_fetch(new, new)
    assert S == 9
    expected = mx.concatenate([key[:, :, :6], new], axis=2)
    assert_close(keys, expected, "what was forgotten is overwritten", ulps=0)


def test_task_1_rewind_too_far():
    cache = TinyKvFullCache()
    cache.update_and_fetch(mx.zeros((1, 1, 2, 4)), mx.zeros((1, 1, 2, 4)))
    with pytest.raises(ValueError, match="cannot forget 3 of 2 tokens"):
        cache.rewind(3)


def test_task_1_release():
    cache = TinyKvFullCache()
    cache.update_and_fetch(mx.zeros((1, 1, 2, 4)), mx.zeros((1, 1, 2, 4)))
    cache.release()
    assert cache.offset == 0
    assert cache.key_values is None


def test_task_1_shapes_that_do_not_fit():
    cache = TinyKvFullCache()
    with pytest.raises(ValueError, match="must be the same"):
        cache.update_and_fetch(mx.zeros((1, 1, 2, 4)), mx.zeros((1, 1, 3, 4)))
    cache.update_and_fetch(mx.zeros((1, 2, 1, 4)), mx.zeros((1, 2, 1, 4)))
    with pytest.raises(ValueError, match="only the third dimension may differ"):
        cache.update_and_fetch(mx.zeros((1, 3, 1, 4)), mx.zeros((1, 3, 1, 4)))


def test_task_1_appending_does_not_copy_the_history(device):
    cache = TinyKvFullCache()
    token = mx.zeros((1, 2, 1, 8))
    buffers = set()
    for _ in range(600):
        mx.eval(cache.update_and_fetch(token, token)[:2])
        buffers.add(cache._keys.shape[2])
    assert len(buffers) <= 4, "the buffer grows in steps, not with every token"


@pytest.mark.parametrize("chunks", [[11], [1] * 11, [4, 4, 3], [10, 1]])
@pytest.mark.parametrize("tied", [True, False])
def test_task_3_logits_equal_week_1(device, dtype, chunks, tied):
    oracle = tiny_model(dtype, tie_word_embeddings=tied)
    expected = Qwen3ModelWeek1(oracle)(mx.array([IDS]))
    model = Qwen3ModelWeek2(oracle)
    cache, offset, logits = model.create_kv_cache(), 0, []
    for length in chunks:
        logits.append(model(mx.array([IDS[offset : offset + length]]), offset, cache))
        offset += length
    hint = "positions start at offset; query i sees the past and new tokens up to itself"
    assert_close(mx.concatenate(logits, axis=1), expected, f"logits by chunks ({hint})", ulps=24)


@pytest.mark.parametrize(("bits", "group_size"), [(4, 32), (4, 128), (8, 64)])
@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_task_3_quantized_logits_equal_mlx_lm(bits, group_size, dtype):
    oracle = tiny_model(
        dtype, hidden_size=128, intermediate_size=256, head_dim=32, tie_word_embeddings=False
    )
    nn.quantize(oracle, group_size=group_size, bits=bits)
    model = Qwen3ModelWeek2(oracle)
    actual = model(mx.array([IDS]), 0, model.create_kv_cache())
    assert actual.dtype == dtype
    assert_close(actual, oracle(mx.array([IDS])), "logits", ulps=16)


def test_task_3_offsets_of_a_batch(device):
    model = Qwen3ModelWeek2(tiny_model())
    ids = mx.array([IDS[:4], IDS[4:8]])
    by_number = model(ids, 0, model.create_kv_cache())
    by_list = model(ids, [0, 0], model.create_kv_cache())
    by_array = model(ids, mx.array([0, 0]), model.create_kv_cache())
    assert by_number.tolist() == by_list.tolist() == by_array.tolist()
    with pytest.raises(ValueError, match="3 offsets were given for a batch of 2"):
        model(ids, [0, 0, 0], model.create_kv_cache())
    with pytest.raises(ValueError, match="1 caches were given for 3 layers"):
        model(ids, 0, model.create_kv_cache()[:1])


def test_task_4_same_text_as_week_1(device):
    oracle = tiny_model(vocab_size=256)
    for prompt in ("a", "hello", "a longer prompt, to be prefilled at once"):
        expected = simple_generate(Qwen3ModelWeek1(oracle), ByteTokenizer(), prompt, max_tokens=12)
        model = Qwen3ModelWeek2(oracle)
        actual = simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, max_tokens=12)
        assert actual == expected


class CountingModel:
    """Wraps a model and notes what it is asked."""

    def __init__(self, model: Qwen3ModelWeek2):
        self.model = model
        self.calls: list[tuple[int, int]] = []

    def create_kv_cache(self):
        return self.model.create_kv_cache()

    def __call__(self, inputs, offset, cache):
        self.calls.append((inputs.shape[1], offset))
        return self.model(inputs, offset, cache)


def test_task_4_computes_each_token_once(device):
    model = CountingModel(Qwen3ModelWeek2(tiny_model(vocab_size=256)))
    simple_generate_with_kv_cache(model, ByteTokenizer(), "hello", max_tokens=4)
    assert model.calls == [(5, 0), (1, 5), (1, 6), (1, 7)][: len(model.calls)]


@pytest.mark.parametrize(
    "question", ["What is the capital of France?", "What is the KV cache?", "What is 17 + 25?"]
)
def test_task_4_demo_model_says_the_same_with_and_without_cache(demo, question):
    mlx_model, tokenizer = demo
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, enable_thinking=False
    )
    expected = simple_generate(Qwen3ModelWeek1(mlx_model), tokenizer, prompt, max_tokens=40)
    model = Qwen3ModelWeek2(mlx_model)
    assert simple_generate_with_kv_cache(model, tokenizer, prompt, max_tokens=40) == expected
