"""Week 2, day 1: the KV cache and a model that uses it."""

from contextlib import nullcontext
from itertools import islice

import mlx.core as mx
import numpy as np
import pytest

from tests.list_cache import ListCache
from tests.support import (
    ByteTokenizer,
    assert_close,
    assert_equal,
    assert_same_bits,
    random,
    tiny_model,
)
from tiny_llm import (
    Qwen3ModelWeek1,
    Qwen3ModelWeek2,
    RoPE,
    TinyKvFullCache,
    simple_generate,
    simple_generate_with_kv_cache,
)
from tiny_llm.generate import decode_with_cache, loops
from tiny_llm.kv_cache.full import grow_buffer
from tiny_llm.qwen3_week2 import Qwen3MultiHeadAttention, attend_grouped

IDS = [3, 17, 130, 0, 3, 99, 5, 41, 8, 77, 2]


@pytest.mark.parametrize("chunks", [[1], [5], [1, 1, 1], [7, 1, 128, 1], [255, 1, 1], [300, 400]])
def test_task_1_returns_written_tokens(device, dtype, chunks):
    cache = TinyKvFullCache()
    keys, values = [], []
    for length in chunks:
        for new in (keys, values):
            new.append(random(2, 3, length, 8, dtype=dtype))
        fetched = cache.update_and_fetch(keys[-1], values[-1], mask_length=length, mask="causal")
        all_keys, all_values = mx.concatenate(keys, axis=2), mx.concatenate(values, axis=2)
        assert_close(fetched[0], all_keys, "keys, oldest first", ulps=0)
        assert_close(fetched[1], all_values, "values, oldest first", ulps=0)
        assert fetched[2] == cache.offset == all_keys.shape[2]
        assert fetched[3] == "causal", "expected the mask to be passed through"
    assert cache.key_values[0].shape[2] == sum(chunks)


def test_task_1_append_counts_the_valid_tokens(device):
    cache, tokens = TinyKvFullCache(), random(2, 3, 6, 8)
    for start, end in ((0, 5), (5, 6)):
        new = tokens[:, :, start:end]
        keys, values, context_lens = cache.append(new, -new)
        assert_equal(context_lens, [end] * 2, "the valid tokens of both sequences")
        assert_close(keys[:, :, :end], tokens[:, :, :end], "keys, oldest first", ulps=0)
        assert_close(values[:, :, :end], -tokens[:, :, :end], "values, oldest first", ulps=0)


def test_task_1_rewind_and_release(device):
    cache = TinyKvFullCache()
    key = random(1, 2, 10, 8)
    cache.update_and_fetch(key, key)
    cache.rewind(4)
    assert cache.offset == 6
    new = random(1, 2, 3, 8)
    keys, _, S, _ = cache.update_and_fetch(new, new)
    assert S == 9
    expected = mx.concatenate([key[:, :, :6], new], axis=2)
    assert_close(keys, expected, "rewound tokens must be overwritten", ulps=0)
    with pytest.raises(ValueError, match="cannot rewind by 10 tokens; it has 9"):
        cache.rewind(10)
    cache.release()
    assert cache.offset == 0
    assert cache.key_values is None, "expected no keys and values after release"
    assert cache.state == [], f"expected no arrays after release, got {len(cache.state)}"


def test_task_1_mismatched_shapes():
    cache = TinyKvFullCache()
    with pytest.raises(ValueError, match="must have the same shape"):
        cache.update_and_fetch(mx.zeros((1, 1, 2, 4)), mx.zeros((1, 1, 3, 4)))
    cache.update_and_fetch(mx.zeros((1, 2, 1, 4)), mx.zeros((1, 2, 1, 4)))
    with pytest.raises(ValueError, match="shape"):  # also that of `mx.concatenate`
        cache.update_and_fetch(mx.zeros((1, 3, 1, 4)), mx.zeros((1, 3, 1, 4)))
    assert cache.offset == 1, f"expected 1 token after the rejected one, got {cache.offset}"


def test_task_5_capacity_and_shapes():
    old = random(1, 2, 64, 8)
    buffer = grow_buffer(None, old, 64)
    buffer = mx.concatenate([old, buffer[:, :, 64:]], axis=2)
    grown = grow_buffer(buffer, random(1, 2, 300, 8), 364)
    assert grown.shape[2] >= 364, f"expected room for 364 tokens, got {grown.shape[2]}"
    assert_close(grown[:, :, :64], old, "the first tokens of the grown buffer", ulps=0)
    buffer = grow_buffer(mx.zeros((1, 2, 64, 8)), mx.zeros((1, 2, 6, 8)), 70, max_capacity=100)
    assert 70 <= buffer.shape[2] <= 100, f"expected a capacity of 70 to 100, got {buffer.shape[2]}"
    with pytest.raises(ValueError, match="except in the third dimension"):
        grow_buffer(mx.zeros((1, 2, 64, 4)), mx.zeros((1, 3, 1, 4)), 2)
    nothing = mx.zeros((1, 2, 0, 8))
    with pytest.raises(ValueError, match="must hold at least 1 token"):
        TinyKvFullCache().update_and_fetch(nothing, nothing)


@pytest.mark.parametrize(("capacity", "least"), [(0, 64), (64, 320)])
def test_task_5_smallest_growth(capacity, least):
    buffer = mx.zeros((1, 2, capacity, 8)) if capacity else None
    grown = grow_buffer(buffer, mx.zeros((1, 2, 1, 8)), capacity + 1).shape[2]
    assert grown >= least, f"{capacity} full: expected a capacity of at least {least}, got {grown}"


def test_task_5_appending_writes_in_place(device):
    cache, token = TinyKvFullCache(), mx.zeros((1, 2, 1, 8))
    addresses = set()
    for step in range(8):
        mx.eval(cache.append(token, token)[:2])
        cache.rewind(step % 2)
        for name, buffer in (("keys", cache._keys), ("values", cache._values)):
            addresses.add((name, np.array(buffer, copy=False).ctypes.data))
            del buffer
    assert len(addresses) == 2, (
        f"8 appends: expected one buffer of keys and one of values, got {len(addresses)}; a "
        "reference to a buffer makes MLX copy it"
    )


def test_task_5_total_copy_cost_is_linear():
    new, copied, buffer = mx.zeros((1, 1, 64, 1)), 0, None
    for tokens in range(64, 16_385, 64):
        capacity = 0 if buffer is None else buffer.shape[2]
        buffer = grow_buffer(buffer, new, tokens)
        if buffer.shape[2] != capacity:
            copied += capacity
            mx.eval(buffer)
            most = capacity * 1.5 + 256
            assert buffer.shape[2] <= most, (
                f"capacity {capacity}: expected growth by half, to at most {most:.0f}, got "
                f"{buffer.shape[2]}"
            )
    assert copied <= 8 * tokens, (
        f"{copied / tokens:.0f} copies of each token instead of about 2: the buffer must grow by a "
        "fraction of its size, not by a constant"
    )


def test_task_3_custom_cache():
    model = Qwen3ModelWeek2(tiny_model())
    ours, theirs = model.create_kv_cache(), [ListCache() for _ in range(model.num_hidden_layers)]
    for start, end in ((0, 5), (5, 6), (6, 11)):
        ids = mx.array([IDS[start:end]])
        assert_same_bits(model(ids, start, theirs), model(ids, start, ours), f"tokens from {start}")
    assert all(cache.state == [] for cache in theirs)


def attention_of(mlx_model) -> Qwen3MultiHeadAttention:
    dtype = mlx_model.model.embed_tokens.weight.dtype
    attention = mlx_model.model.layers[0].self_attn
    return Qwen3MultiHeadAttention(mlx_model.args, attention, dtype, attend_grouped)


@pytest.mark.parametrize("heads", [(4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("chunks", [[9], [1] * 9, [4, 5], [8, 1]])
def test_task_2_chunked_attention_equals_mlx_lm(device, dtype, heads, chunks):
    mlx_model = tiny_model(dtype, num_attention_heads=heads[0], num_key_value_heads=heads[1])
    attention = attention_of(mlx_model)
    rope = RoPE(16, 128, base=mlx_model.args.rope_theta)
    x, cache, offset, out = random(2, 9, 48, dtype=dtype), TinyKvFullCache(), 0, []
    for L in chunks:
        cos_sin = rope.cos_sin(slice(offset, offset + L), 2, L)
        out.append(attention(x[:, offset : offset + L], cos_sin, cache))
        offset += L
    actual = mx.concatenate(out, axis=1)
    assert actual.dtype == dtype
    assert_equal(cache.key_values[0].dtype, dtype, f"keys in {dtype} in the cache")
    assert_equal(cache.key_values[0].shape, (2, heads[1], 9, 16), "each key once in the cache")
    hint = "RoPE at the new tokens' positions; past keys and values come from the cache"
    expected = mlx_model.model.layers[0].self_attn(x, "causal")
    assert_close(actual, expected, f"attention with a cache ({hint})", ulps=8)


def test_task_2_scores_are_in_float32(device):
    # Scores are large and close, so bfloat16, whose spacing is 1/2 above 64, would be too coarse.
    query, key, value = (
        random(1, heads, 40, 16, dtype=mx.bfloat16, scale=scale)
        for heads, scale in ((4, 5), (2, 5), (2, 1))
    )
    actual = attend_grouped(query, key, value, TinyKvFullCache(), 0.3)
    expected = mx.fast.scaled_dot_product_attention(
        *(part.astype(mx.float32) for part in (query, key, value)), scale=0.3, mask="causal"
    )
    assert actual.dtype == mx.bfloat16
    expected = expected.astype(mx.bfloat16)
    assert_close(actual, expected, "attention with float32 scores", ulps=2)


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
    hint = "positions start at offset; query i sees the past and the new tokens up to itself"
    assert_close(mx.concatenate(logits, axis=1), expected, f"logits by chunks ({hint})", ulps=24)


def test_task_3_one_cache_per_layer(device):
    model = Qwen3ModelWeek2(tiny_model())
    cache = model.create_kv_cache()
    assert len(cache) == model.num_hidden_layers == 3
    assert len({id(layer) for layer in cache}) == 3, "layers must not share a cache"
    model(mx.array([IDS]), 0, cache)
    assert [layer.offset for layer in cache] == [len(IDS)] * 3
    with pytest.raises(ValueError, match="expected 3 caches, one per layer, got 1"):
        model(mx.array([IDS]), 0, model.create_kv_cache()[:1])


def test_task_4_same_text_as_week_1(device):
    oracle = tiny_model(vocab_size=256)
    for prompt in ("a", "hello", "a longer prompt, to be prefilled at once"):
        expected = simple_generate(Qwen3ModelWeek1(oracle), ByteTokenizer(), prompt, max_tokens=12)
        model = Qwen3ModelWeek2(oracle)
        actual = simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, max_tokens=12)
        assert actual == expected


class CountingModel:
    def __init__(self, model: Qwen3ModelWeek2):
        self.model = model
        self.calls: list[tuple[int, int]] = []

    def create_kv_cache(self):
        self.caches = self.model.create_kv_cache()
        return self.caches

    def __call__(self, inputs, offset, cache):
        self.calls.append((inputs.shape[1], offset))
        return self.model(inputs, offset, cache)


def test_task_4_computes_each_token_once(device):
    model = CountingModel(Qwen3ModelWeek2(tiny_model(vocab_size=256)))
    simple_generate_with_kv_cache(model, ByteTokenizer(), "hello", max_tokens=4)
    assert model.calls == [(5, 0), (1, 5), (1, 6), (1, 7)][: len(model.calls)]


@pytest.mark.parametrize(
    ("prompt", "calls"),
    [("9 letters", [(4, 0), (4, 4), (1, 8), (1, 9)]), ("8 letter", [(4, 0), (4, 4), (1, 8)])],
)
def test_task_4_prefills_in_chunks(device, monkeypatch, prompt, calls):
    oracle = tiny_model(vocab_size=256)
    expected = simple_generate(Qwen3ModelWeek1(oracle), ByteTokenizer(), prompt, max_tokens=3)
    monkeypatch.setattr(loops, "PREFILL_STEP", 4)
    model = CountingModel(Qwen3ModelWeek2(oracle))
    actual = simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, max_tokens=3)
    assert_equal(model.calls[: len(calls)], calls, f"(tokens, offset) of {prompt!r} in chunks of 4")
    assert actual == expected


def test_task_4_yields_arrays_of_its_own_cache(device):
    """Converting a token to a number would wait for its computation."""

    def sampler(logprobs):
        mass = mx.exp(logprobs).sum().item()
        assert abs(mass - 1) < 1e-3, f"expected log-probabilities, got a mass of {mass:.4g}"
        return mx.argmax(logprobs, axis=-1)

    decode = decode_with_cache(Qwen3ModelWeek2(tiny_model()), IDS, sampler)
    for token in islice(decode, 3):
        assert isinstance(token, mx.array), f"expected a lazy array, got {token!r}"
        assert token.shape == (1,), f"expected one element, got the shape {token.shape}"
    decode.close()
    model = Qwen3ModelWeek2(tiny_model())
    prompts = IDS, IDS[::-1]

    def tokens(*loops):
        return [[token.item() for token in step] for step in islice(zip(*loops, strict=True), 4)]

    def greedy(logprobs):
        return mx.argmax(logprobs, axis=-1)

    expected = [tokens(decode_with_cache(model, prompt, greedy)) for prompt in prompts]
    actual = tokens(*(decode_with_cache(model, prompt, greedy) for prompt in prompts))
    assert actual == [[*a, *b] for a, b in zip(*expected, strict=True)], "in turns"


def test_task_4_evaluates_each_chunk_before_the_next(monkeypatch):
    monkeypatch.setattr(loops, "PREFILL_STEP", 4)
    logits: list[mx.array] = []
    memory: list[int] = []

    class Model:
        def create_kv_cache(self):
            return []

        def next_token_logits(self, inputs, offset, cache):
            memory.append(mx.get_active_memory())
            logits.append(mx.arange(1 << 18) + inputs[:, :1].astype(mx.float32))
            return logits[-1]

    decode = decode_with_cache(Model(), IDS, lambda logprobs: mx.argmax(logprobs, axis=-1))
    next(decode)
    decode.close()
    size = logits[0].nbytes
    grown = [round((after - memory[0]) / size) for after in memory]
    assert grown == [0, 1, 2], (
        f"expected the logits of 0, 1 and 2 chunks in memory before each chunk, got {grown}: "
        "evaluate those of a chunk before the next"
    )


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_task_4_releases_caches_at_end_of_generation(device, error):
    def sampler(logprobs):
        if error is not None:
            raise error
        return mx.argmax(logprobs, axis=-1)

    model = CountingModel(Qwen3ModelWeek2(tiny_model(vocab_size=256)))
    with nullcontext() if error is None else pytest.raises(error):
        simple_generate_with_kv_cache(model, ByteTokenizer(), "hello", sampler, max_tokens=4)
    held = [cache.offset for cache in model.caches]
    assert_equal(held, [0] * len(held), "no tokens in each layer's cache at the end")
