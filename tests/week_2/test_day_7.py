"""Week 2, day 7: continuous batching."""

from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

import tiny_llm.batch
from tests.support import (
    ByteTokenizer,
    assert_close,
    assert_same_bits,
    assert_same_completions,
    chat_prompt,
    tiny_model,
    tiny_quantized_model,
)
from tiny_llm import (
    BatchingKvCache,
    Qwen3ModelWeek2,
    UserError,
    batch_generate,
    make_sampler,
    simple_generate_with_kv_cache,
)
from tiny_llm.batch import BatchGeneration, Request
from tiny_llm.demo import BATCH_PROMPTS


@pytest.mark.parametrize("lengths", [[3, 8, 5], [1, 1, 1], [6, None, 2]])
def test_task_3_batched_requests_in_the_model(device, lengths):
    model = Qwen3ModelWeek2(tiny_model())
    rng = np.random.default_rng(0)
    prompts = [None if n is None else rng.integers(0, 131, n).tolist() for n in lengths]
    next_ids = rng.integers(0, 131, 3).tolist()
    caches = [BatchingKvCache(3, 64) for _ in range(model.num_hidden_layers)]
    expected = {}
    for slot, prompt in enumerate(prompts):
        if prompt is None:
            continue
        single, twin = model.create_kv_cache(), model.create_kv_cache()
        for cache in (single, twin):
            model(mx.array([prompt]), 0, cache)
        expected[slot] = model(mx.array([[next_ids[slot]]]), len(prompt), twin)
        for layer, cache in zip(caches, single, strict=True):
            layer.add_request(cache, slot)
    offsets = [0 if prompt is None else len(prompt) for prompt in prompts]
    logits = model(mx.array(next_ids)[:, None], offsets, caches)
    for slot, alone in expected.items():
        assert_close(logits[slot : slot + 1], alone, f"slot {slot}'s logits", ulps=32)


def test_task_3_offsets_of_a_batch(device):
    model = Qwen3ModelWeek2(tiny_model())
    ids = mx.array([[3, 17, 130, 0], [3, 99, 5, 41]])
    by_number = model(ids, 0, model.create_kv_cache())
    by_list = model(ids, [0, 0], model.create_kv_cache())
    by_array = model(ids, mx.array([0, 0]), model.create_kv_cache())
    by_numpy = model(ids, np.int64(0), model.create_kv_cache())
    assert by_number.tolist() == by_list.tolist() == by_array.tolist() == by_numpy.tolist()
    with pytest.raises(ValueError, match="expected 2 offsets, one per sequence, got 3"):
        model(ids, [0, 0, 0], model.create_kv_cache())


@pytest.mark.parametrize("lengths", [[3, 8, 5], [1, 1, 1], [6, None, 2], [40, 2, 300]])
def test_task_3_batched_request_is_bitwise_equal_to_single(instruction_set, lengths):
    model = Qwen3ModelWeek2(tiny_quantized_model(), enable_flash_attn=True)
    rng = np.random.default_rng(0)
    prompts = [None if n is None else rng.integers(0, 131, n).tolist() for n in lengths]
    next_ids = rng.integers(0, 131, (3, 4))
    batch = [BatchingKvCache(3, 512) for _ in range(model.num_hidden_layers)]
    single = [model.create_kv_cache() for _ in prompts]
    for slot, prompt in enumerate(prompts):
        if prompt is not None:
            mx.eval(model(mx.array([prompt]), 0, single[slot]))
            for layer, cache in zip(batch, single[slot], strict=True):
                layer.add_request(cache, slot)
    for step in range(4):
        offsets = [0 if prompt is None else len(prompt) + step for prompt in prompts]
        ids = next_ids[:, step : step + 1].tolist()
        together = model.next_token_logits(mx.array(ids), offsets, batch)
        mx.eval(together)
        for slot, prompt in enumerate(prompts):
            if prompt is not None:
                alone = model.next_token_logits(mx.array([ids[slot]]), offsets[slot], single[slot])
                what = f"logits of slot {slot} in step {step}"
                assert_same_bits(together[slot], alone[0], what)


PROMPTS = ["a", "hello there", "x" * 40, "one two three", "zz", "the longest of all prompts " * 2]


@pytest.fixture(scope="module")
def small_model() -> Qwen3ModelWeek2:
    mx.random.seed(5)
    return Qwen3ModelWeek2(tiny_model(vocab_size=256))


def generate_alone(model, prompt: str, max_seq_len: int) -> str:
    room = max_seq_len - len(prompt.encode())
    return simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, max_tokens=room)


@pytest.mark.parametrize("batch_size", [1, 3, 5, 16])
@pytest.mark.parametrize("prefill_step", [1, 7, 128])
def test_task_4_batched_text_equals_single_request_text(small_model, batch_size, prefill_step):
    prompts = list(PROMPTS)
    outputs = batch_generate(
        small_model, ByteTokenizer(), prompts, 70, batch_size=batch_size, prefill_step=prefill_step
    )
    assert prompts == PROMPTS, "the caller's list must not change"
    expected = [(i, generate_alone(small_model, prompt, 70)) for i, prompt in enumerate(PROMPTS)]
    assert_same_completions(outputs, expected)


def test_task_4_invalid_prompt_does_not_stop_the_batch(small_model):
    assert batch_generate(small_model, ByteTokenizer(), []) == []
    prompts = ["ok", "y" * 90, "", "fine"]
    outputs = dict(batch_generate(small_model, ByteTokenizer(), prompts, max_seq_len=30))
    assert outputs[0] == generate_alone(small_model, "ok", 30)
    assert outputs[1] == "[the prompt has 90 tokens, but max_seq_len is 30, including the output.]"
    assert outputs[2] == "[the prompt is empty; give at least one token.]"
    assert outputs[3] == generate_alone(small_model, "fine", 30)


@pytest.mark.parametrize("room", [1, 2])
def test_task_4_context_limit_covers_prompt_and_output(small_model, room):
    prompt = "nearly full"
    max_seq_len = len(prompt) + room
    outputs = batch_generate(small_model, ByteTokenizer(), [prompt, "short"], max_seq_len)
    assert outputs[0] == (0, generate_alone(small_model, prompt, max_seq_len))


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ("abc", {}, "prompts must be a list"),
        *(
            (["a"], {name: 0}, f"{name} must be at least 1, got 0")
            for name in ("max_seq_len", "batch_size", "prefill_step", "max_tokens")
        ),
        (["a", "b"], {"max_tokens": [1]}, "expected 2 max_tokens, one per prompt, got 1"),
    ],
)
def test_task_4_invalid_arguments_are_rejected(small_model, prompts, options, message):
    with pytest.raises(UserError, match=message):
        BatchGeneration(small_model, ByteTokenizer(), prompts, **options)


def test_task_4_finished_request_frees_its_slot(small_model):
    batch = BatchGeneration(small_model, ByteTokenizer(), ["x" * 20, "y" * 5, "z" * 5], 24, 2)
    seen = []
    while not batch.is_done:
        batch.step()
        seen.append([None if request is None else request.index for request in batch.slots])
        live = [request for request in batch.slots if request is not None]
        for cache in batch._caches:
            held = [length for length in cache.lengths if length is not None]
            assert held == [request.offset for request in live]
    assert [2, 1] in seen, "expected prompt 2 to reuse prompt 0's slot"
    assert all(length is None for cache in batch._caches for length in cache.lengths)


def test_task_5_chunked_prefill(small_model):
    request = Request(0, small_model, ByteTokenizer(), list(range(2, 22)), prefill_step=8)
    offsets = []
    while not request.is_prefilled:
        assert request.next_token is None, "the first token must follow the last chunk"
        request.try_prefill()
        offsets.append(request.offset)
    assert offsets == [8, 16, 20]
    assert request.next_token is not None
    assert all(cache.offset == 20 for cache in request.cache)


@pytest.mark.parametrize("prefill_step", [1, 7, 8, 19])
def test_task_5_chunked_prefill_equals_one_chunk(small_model, prefill_step):
    def prefilled(step: int) -> Request:
        request = Request(0, small_model, ByteTokenizer(), list(range(2, 22)), prefill_step=step)
        while not request.is_prefilled:
            request.try_prefill()
        return request

    chunks, whole = prefilled(prefill_step), prefilled(20)
    for layer, (cache, expected) in enumerate(zip(chunks.cache, whole.cache, strict=True)):
        hint = f"layer {layer}'s keys: each chunk must start where the previous one ended"
        assert_close(cache.key_values[0], expected.key_values[0], hint, ulps=64)
    assert chunks.next_token == whole.next_token


def test_task_5_active_requests_decode_between_chunks(small_model):
    batch = BatchGeneration(small_model, ByteTokenizer(), ["a", "b" * 40], 60, 2, prefill_step=8)
    batch.step()
    before = batch.slots[0].offset
    for chunk in range(1, 5):
        batch.step()
        assert batch.prefilling.offset == 8 * chunk
        assert batch.slots[0] is None or batch.slots[0].offset == before + chunk


@pytest.mark.parametrize("max_tokens", [1, 2, 3, [1, 5, 2, 9]])
def test_task_4_max_tokens(small_model, max_tokens):
    options, prompts = {"max_tokens": max_tokens, "ignore_eos": True}, ["a", "b" * 9, "c", "d"]
    batch = BatchGeneration(small_model, ByteTokenizer(), prompts, 60, 2, **options)
    while not batch.is_done:
        batch.step()
    limits = max_tokens if isinstance(max_tokens, list) else [max_tokens] * 4
    assert [batch.requests[index].num_tokens for index in range(4)] == limits


def test_task_4_ignore_eos(small_model):
    class EndsImmediately(ByteTokenizer):
        eos_token_ids = frozenset(range(256))

    for ignore_eos, count in ((False, 1), (True, 4)):
        options = {"max_tokens": 4, "ignore_eos": ignore_eos}
        batch = BatchGeneration(small_model, EndsImmediately(), ["a"], **options)
        while not batch.is_done:
            batch.step()
        assert batch.requests[0].num_tokens == count


@pytest.mark.parametrize("batch_size", [1, 3])
def test_task_4_seeded_sampling_is_batch_invariant(small_model, batch_size):
    def sampler():
        return make_sampler(temp=1.0, top_p=0.9, top_k=50, seed=7)

    outputs = batch_generate(
        small_model, ByteTokenizer(), PROMPTS, 70, batch_size, prefill_step=7, sampler=sampler()
    )
    for index, prompt in enumerate(PROMPTS):
        room = 70 - len(prompt.encode())
        expected = simple_generate_with_kv_cache(
            small_model, ByteTokenizer(), prompt, sampler(), max_tokens=room
        )
        assert outputs[index] == (index, expected)


class EndsOften(ByteTokenizer):
    """Treats every ninth byte as an end token, so outputs vary in length."""

    eos_token_ids = frozenset(range(0, 256, 9))


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("batch_size", [1, 2, 5])
def test_task_4_next_step_is_dispatched_before_tokens_are_read(
    small_model, on_cpu, monkeypatch, batch_size, seed
):
    """On a GPU, steps are dispatched ahead; tokens beyond the end are discarded."""

    def run():
        sampler = None if seed is None else make_sampler(1.0, seed=seed)
        batch = BatchGeneration(
            small_model, EndsOften(), PROMPTS, 70, batch_size, 7, sampler, [9, 1, 30, 5, 30, 2]
        )
        num_ahead = 0
        while not batch.is_done:
            batch.step()
            num_ahead += batch._in_flight is not None
            live = [request.offset for request in batch.slots if request is not None]
            for cache in batch._caches:
                assert [length for length in cache.lengths if length is not None] == live
        return sorted(batch.outputs.items()), num_ahead

    expected, num_ahead = run()
    assert num_ahead == 0, "expected no dispatch ahead on a CPU"
    monkeypatch.setattr(tiny_llm.batch, "kernels", SimpleNamespace(computes_on_cpu=lambda: False))
    outputs, num_ahead = run()
    assert_same_completions(outputs, expected)
    assert num_ahead > 5


@pytest.fixture(scope="module")
def demo_answers(demo) -> list[tuple[int, str]]:
    """Demo outputs of single requests, with attention in plain MLX."""
    mlx_model, tokenizer = demo
    model = Qwen3ModelWeek2(mlx_model)
    return [
        (index, simple_generate_with_kv_cache(model, tokenizer, chat_prompt(tokenizer, prompt)))
        for index, prompt in enumerate(BATCH_PROMPTS[::2])
    ]


@pytest.mark.slow
@pytest.mark.parametrize("flash", [False, True])
@pytest.mark.parametrize(("batch_size", "prefill_step"), [(1, 7), (3, 128), (5, 1), (16, 128)])
def test_task_5_demo_output_is_batch_invariant(demo, demo_answers, flash, batch_size, prefill_step):
    mlx_model, tokenizer = demo
    model = Qwen3ModelWeek2(mlx_model, enable_flash_attn=flash)
    prompts = [chat_prompt(tokenizer, prompt) for prompt in BATCH_PROMPTS[::2]]
    outputs = batch_generate(model, tokenizer, prompts, 512, batch_size, prefill_step)
    assert outputs == demo_answers
