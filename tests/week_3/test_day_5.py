"""Week 3, day 5: speculative decoding, greedy and by rejection sampling."""

from collections.abc import Callable
from itertools import islice, product

import mlx.core as mx
import numpy as np
import pytest

from tests.support import (
    ByteTokenizer,
    as_numpy,
    assert_distributed,
    assert_equal,
    chat_prompt,
    tiny_model,
)
from tiny_llm import (
    Qwen3ModelWeek2,
    Qwen3ModelWeek3,
    SpeculativeDecoding,
    UserError,
    load,
    make_sampler,
    simple_generate_with_kv_cache,
    speculative_generate,
)
from tiny_llm.demo import BATCH_PROMPTS
from tiny_llm.generate import decode_with_cache, stream_generate
from tiny_llm.generate.speculative import verify_by_matching, verify_by_rejection


class TokenCache:
    """Cache of token ids instead of keys and values."""

    def __init__(self):
        self.tokens: list[int] = []
        self.released = False

    def rewind(self, n: int) -> None:
        assert 0 <= n <= len(self.tokens), f"cannot rewind {n} of {len(self.tokens)} tokens"
        del self.tokens[len(self.tokens) - n :]

    def release(self) -> None:
        self.released = True


class TableModel:
    """Model whose next token is a function of the previous two.

    Args:
        logits_of: (previous token, current token) -> logits of the next token.
    """

    def __init__(self, logits_of: Callable[[int, int], np.ndarray], max_seq_len: int = 10_000):
        self.logits_of = logits_of
        self.max_seq_len = max_seq_len
        self.calls: list[int] = []
        self.caches: list[TokenCache] = []

    def create_kv_cache(self):
        self.caches.append(TokenCache())
        return self.caches[-1:]

    def __call__(self, inputs, offset, cache):
        assert offset == len(cache[0].tokens), "offset must equal the number of cached tokens"
        assert offset + inputs.shape[1] <= self.max_seq_len, "the sequence exceeds max_seq_len"
        assert inputs.size, "expected token ids, got none; does the cache hold the whole sequence?"
        assert mx.issubdtype(inputs.dtype, mx.integer), f"expected token ids, got {inputs.dtype}"
        history = cache[0].tokens
        self.calls.append(inputs.shape[1])
        rows = []
        for token in inputs[0].tolist():
            history.append(token)
            rows.append(self.logits_of(history[-2] if len(history) > 1 else 0, token))
        return mx.array(np.stack(rows).astype(np.float32))[None]


def random_table(V: int, seed: int, scale: float = 1.5, width: int | None = None):
    """Logits for each pair of tokens, padded or truncated to `width`."""
    table = np.random.default_rng(seed).normal(size=(64, 64, V)) * scale
    padding = np.full(max(0, (width or V) - V), 0.5)
    return lambda before, token: np.append(table[before, token], padding)[:width]


BYTES = ByteTokenizer(), ByteTokenizer()


def tokens_of(decode, model, prompt, sampler, count: int) -> list[int]:
    return list(islice(decode(model, prompt, sampler), count))


DRAFTS = {
    "equal": lambda logits: logits,
    "always wrong": lambda logits: -logits,
    "half right": lambda logits: logits + np.sin(np.arange(len(logits)) * 3),
    "narrower": lambda logits: logits[:-2],
    "wider": lambda logits: np.append(logits, [50.0, 60.0]),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("num_drafts", range(1, 9))
def test_task_1_greedy_output_equals_target(device, num_drafts, draft):
    logits_of = random_table(9, seed=1)
    model = TableModel(logits_of)
    expected = tokens_of(decode_with_cache, model, [3, 1, 4], make_sampler(0), 60)
    twin = TableModel(lambda *history: DRAFTS[draft](logits_of(*history)))
    decode = SpeculativeDecoding(twin, num_drafts)
    assert tokens_of(decode, model, [3, 1, 4], make_sampler(0), 60) == expected


def test_task_1_accepted_drafts_save_steps_and_rejected_cost_none(device):
    logits_of = random_table(9, seed=1)
    for sign, steps, accepted in ((1, 1 + 12, 48), (-1, 61, 0)):
        model = TableModel(logits_of)
        draft = TableModel(lambda *history, sign=sign: sign * logits_of(*history))
        decode = SpeculativeDecoding(draft, num_drafts=4)
        tokens_of(decode, model, [3, 1, 4], make_sampler(0), 61)
        assert decode.statistics.target_steps == steps
        assert decode.statistics.num_accepted_tokens == accepted
        assert decode.statistics.num_draft_tokens == 4 * (steps - 1)
        hint = "the prompt's 3 tokens, then 5 per step: the last token and 4 draft tokens"
        assert_equal(model.calls, [3] + [5] * (steps - 1), hint)
    decode = SpeculativeDecoding(TableModel(random_table(9, seed=1)))
    assert str(decode.statistics) == "draft tokens: 0 of 0 accepted, 0 target steps"
    tokens_of(decode, TableModel(random_table(9, seed=1)), [1], make_sampler(0), 6)
    assert str(decode.statistics) == "draft tokens: 4 of 4 accepted (100%), 2 target steps"


@pytest.mark.parametrize("num_drafts", range(1, 9))
def test_task_1_real_models_with_a_cache(device, num_drafts):
    model = Qwen3ModelWeek2(tiny_model(vocab_size=256))
    draft = Qwen3ModelWeek2(tiny_model(vocab_size=250, num_hidden_layers=1))
    for draft_model in (draft, model):
        for prompt in ("a", "hello", "a longer prompt, to be prefilled at once"):
            expected = simple_generate_with_kv_cache(model, ByteTokenizer(), prompt, max_tokens=30)
            arguments = draft_model, model, *BYTES, prompt, None, num_drafts
            assert speculative_generate(*arguments, max_tokens=30) == expected


@pytest.fixture(scope="module")
def demo_pair(demo):
    mlx_model, tokenizer = demo
    return Qwen3ModelWeek2(load("demo-draft")[0]), Qwen3ModelWeek2(mlx_model), tokenizer


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(BATCH_PROMPTS)))
def test_task_1_demo_output_is_the_same_with_and_without_draft(demo_pair, index):
    draft, model, tokenizer = demo_pair
    prompt = chat_prompt(tokenizer, BATCH_PROMPTS[index], enable_thinking=index % 4 == 0)

    def answer(decode) -> list[int]:
        responses = stream_generate(decode, model, tokenizer, prompt, max_tokens=40)
        return [response.token for response in responses]

    # Each number of draft tokens from 1 to 8 is tested with two prompts.
    assert answer(SpeculativeDecoding(draft, 1 + index % 8)) == answer(decode_with_cache)


@pytest.mark.slow
def test_task_1_full_output_with_flash_attention_and_drafts(demo):
    mlx_model, tokenizer = demo
    plain = Qwen3ModelWeek2(mlx_model)
    flash = Qwen3ModelWeek2(mlx_model, enable_flash_attn=True)
    draft_mlx_model, draft_tokenizer = load("demo-draft")
    draft = Qwen3ModelWeek2(draft_mlx_model, enable_flash_attn=True)
    for question in BATCH_PROMPTS[::2]:
        prompt = chat_prompt(tokenizer, question)
        expected = simple_generate_with_kv_cache(plain, tokenizer, prompt)
        assert speculative_generate(draft, flash, draft_tokenizer, tokenizer, prompt) == expected


def test_task_1_paged_cache_same_text_and_no_leak():
    oracle = tiny_model(vocab_size=256)
    week2 = Qwen3ModelWeek2(oracle, enable_flash_attn=True)
    model = Qwen3ModelWeek3(oracle, page_size=4)
    draft = Qwen3ModelWeek3(tiny_model(vocab_size=250, num_hidden_layers=1), page_size=4)
    for prompt in ("a", "hello", "a longer prompt, to be prefilled at once"):
        expected = simple_generate_with_kv_cache(week2, ByteTokenizer(), prompt, max_tokens=30)
        for num_drafts in (1, 4, 7):
            for draft_model in (draft, model):
                arguments = draft_model, model, *BYTES, prompt, None, num_drafts
                actual = speculative_generate(*arguments, max_tokens=30)
                assert_equal(actual, expected, f"{num_drafts} drafts per step: the same output")
                for pool in (model.page_pool, draft.page_pool):
                    assert pool.num_free_pages == pool.num_pages, "a page leaked"


@pytest.mark.slow
def test_task_1_demo_draft_saves_target_steps(demo_pair):
    draft, model, tokenizer = demo_pair
    decode = SpeculativeDecoding(draft, num_drafts=4)
    tokens = steps = 0
    for question in BATCH_PROMPTS[1::2]:
        prompt = chat_prompt(tokenizer, question)
        tokens += len(list(stream_generate(decode, model, tokenizer, prompt, max_tokens=60)))
        steps += decode.statistics.target_steps
    assert tokens >= 1.7 * steps


@pytest.mark.parametrize("end", range(1, 12))
def test_task_1_accepted_eos_draft_ends_generation(device, end):
    # The model generates 2, 3, 4, …, and after `end` tokens EOS, which is token 1.
    def logits_of(before, token):
        return 10.0 * np.eye(256)[1 if token == 64 + end else token + 1]

    text = "".join(chr(64 + i) for i in range(1, end + 1))
    draft, model = TableModel(logits_of), TableModel(logits_of)
    assert speculative_generate(draft, model, *BYTES, "@") == text
    assert draft.caches[0].released
    assert model.caches[0].released


def successor(before, token):
    return 10.0 * np.eye(256)[token + 1]


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_task_1_max_tokens_is_exact(device, max_tokens):
    draft, model = TableModel(successor), TableModel(successor)
    text = speculative_generate(draft, model, *BYTES, "@", max_tokens=max_tokens)
    assert text == "".join(chr(65 + i) for i in range(max_tokens))


@pytest.mark.parametrize("draft_context", [1, 4, 5, 6, 7, 11, 12, 40])
@pytest.mark.parametrize("num_drafts", [1, 3, 8])
def test_task_1_max_seq_len_of_both_models(device, num_drafts, draft_context):
    # TableModel rejects positions beyond max_seq_len.
    draft, model = TableModel(successor, draft_context), TableModel(successor, 12)
    text = speculative_generate(draft, model, *BYTES, "=>?@", num_drafts=num_drafts)
    assert_equal(text, "ABCDEFGH", "8 tokens, as 4 prompt tokens and 8 fill the target's context")


class WordTokenizer(ByteTokenizer):
    def __init__(self, *words: str):
        self.words = words

    def get_vocab(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}


class UppercaseTokenizer(WordTokenizer):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.upper())


def with_end_tokens(*tokens: int) -> WordTokenizer:
    tokenizer = WordTokenizer("a", "b")
    tokenizer.eos_token_ids = set(tokens)
    return tokenizer


@pytest.mark.parametrize(
    ("draft", "target", "message"),
    [
        (WordTokenizer("a", "b", "c"), WordTokenizer("a", "x", "c"),
         "differ at token 1 .* must share one vocabulary"),
        (WordTokenizer("a"), WordTokenizer("a", "b"),
         r"have 1 and 2 tokens, .* at token 1 \('b'\)"),
        (UppercaseTokenizer("a", "b"), WordTokenizer("a", "b"),
         "they encode .* draft and target must share one tokenizer"),
        (with_end_tokens(5), with_end_tokens(5, 7),
         r"end tokens are \[5\] and the target's \[5, 7\]"),
    ],
    ids=["words", "sizes", "encodings", "end tokens"],
)  # fmt: skip
def test_task_1_mismatched_tokenizers_are_rejected(draft, target, message):
    model = TableModel(random_table(256, seed=1))
    with pytest.raises(UserError, match=message):
        speculative_generate(model, model, draft, target, "hello")


@pytest.mark.parametrize("num_drafts", [0, -1])
def test_task_1_num_drafts_below_one(num_drafts):
    with pytest.raises(UserError, match=f"num_drafts must be at least 1, got {num_drafts}"):
        SpeculativeDecoding(TableModel(random_table(9, seed=1)), num_drafts)


def test_task_2_custom_sampler_is_unchanged_by_drafts(device):
    def sampler(seed: int):
        seeded = make_sampler(1.0, seed=seed)
        return lambda logprobs: seeded(logprobs)

    draft = SpeculativeDecoding(TableModel(random_table(9, seed=1)), 3)
    for seed in range(3):
        model = TableModel(random_table(9, seed=1))
        expected = tokens_of(decode_with_cache, model, [2], sampler(seed), 40)
        assert tokens_of(draft, model, [2], sampler(seed), 40) == expected


def test_task_2_exact_matching_samples_only_output_tokens():
    shapes = []

    def sampler(logprobs):
        shapes.append(logprobs.shape)
        return mx.argmax(logprobs, axis=-1)

    logprobs = mx.log(mx.array(np.eye(4, dtype=np.float32)[[1, 2, 3, 0]]))
    assert verify_by_matching(logprobs, mx.array([1, 0, 3]), sampler) == (1, 2)
    assert shapes == [(1, 4)] * 2
    assert verify_by_matching(logprobs, mx.array([1, 2, 3]), sampler) == (3, 0)
    assert verify_by_matching(logprobs, mx.array([1, 2, 3]), make_sampler(0)) == (3, 0)
    assert verify_by_matching(logprobs[:1], mx.array([], dtype=mx.int32), sampler) == (0, 1)


SAMPLERS = [
    {"temp": 1.0},
    {"temp": 0.6},
    {"temp": 1.7, "top_k": 3},
    {"temp": 0.8, "top_p": 0.7},
    {"temp": 1.2, "top_k": 4, "top_p": 0.9, "min_p": 0.05},
]


@pytest.mark.parametrize("options", SAMPLERS, ids=str)
@pytest.mark.parametrize("distance", [0.0, 0.7, 5.0])
def test_task_2_single_draft_preserves_target_distribution(device, options, distance):
    V, draws = 6, 1500
    rng = np.random.default_rng(3)
    target = rng.normal(size=V)
    draft = mx.array(target + distance * rng.normal(size=V))[None]
    sampler = make_sampler(**options, seed=1)
    p = sampler.probabilities(mx.array(target)[None])
    q = sampler.probabilities(draft)
    counts, all_accepted = np.zeros(V), 0
    for guess in sampler.draw(mx.broadcast_to(sampler.logits(draft), (draws, V))).tolist():
        guesses = mx.array([guess])
        accepted, token = verify_by_rejection(mx.concatenate([p, p]), q, guesses, sampler)
        counts[guess if accepted else token] += 1
        all_accepted += accepted
    assert_distributed(counts, as_numpy(p)[0].astype(np.float64))
    if distance == 0:
        assert all_accepted == draws, (
            "expected every draft token of an equal distribution to be accepted"
        )


@pytest.mark.parametrize(
    ("options", "width"), list(zip(SAMPLERS, [5, 4, 7, 5, 4], strict=True)), ids=str
)
def test_task_2_joint_distribution_of_three_tokens(device, options, width):
    V, draws = 5, 800  # `width` is the draft model's vocabulary size, which may differ
    target = TableModel(random_table(V, seed=5))
    draft = TableModel(random_table(V, seed=5, scale=0.8, width=width))
    oracle = make_sampler(**options)

    def step(before: int, token: int) -> np.ndarray:
        logits = mx.array(target.logits_of(before, token).astype(np.float32))[None]
        return as_numpy(oracle.probabilities(logits))[0].astype(np.float64)

    expected = np.zeros((V, V, V))
    for a, b, c in product(range(V), repeat=3):
        expected[a, b, c] = step(0, 2)[a] * step(2, a)[b] * step(a, b)[c]
    sampler = make_sampler(**options, seed=7)
    decode = SpeculativeDecoding(draft, num_drafts=3)
    counts = np.zeros((V, V, V))
    for _ in range(draws):
        counts[tuple(tokens_of(decode, target, [0, 2], sampler, 3))] += 1
    assert_distributed(counts.ravel(), expected.ravel())


def test_task_2_long_output_preserves_transition_probabilities(device):
    # Compares the next-token distribution of every token pair.
    V = 3
    target = TableModel(random_table(V, seed=2))
    draft = TableModel(random_table(V, seed=3))
    sampler = make_sampler(0.9, top_p=0.95, seed=1)
    decode = SpeculativeDecoding(draft, num_drafts=2)
    ids = [0, 1, *tokens_of(decode, target, [0, 1], sampler, 4000)]
    counts = np.zeros((V, V, V))
    np.add.at(counts, (ids[:-2], ids[1:-1], ids[2:]), 1)
    for before, token in product(range(V), repeat=2):
        logits = mx.array(target.logits_of(before, token).astype(np.float32))[None]
        p = as_numpy(make_sampler(0.9, top_p=0.95).probabilities(logits))[0]
        if counts[before, token].sum():
            assert_distributed(counts[before, token], p.astype(np.float64))
    assert 0 < decode.statistics.num_accepted_tokens < decode.statistics.num_draft_tokens


def test_task_2_same_seed_reproduces_output(device):
    draft = SpeculativeDecoding(TableModel(random_table(9, seed=2)), 3)
    model = TableModel(random_table(9, seed=1))

    def answer(seed: int | None) -> list[int]:
        return tokens_of(draft, model, [2], make_sampler(1.0, seed=seed), 30)

    assert answer(1) == answer(1)
    assert answer(1) != answer(2)
    mx.random.seed(3)
    first = answer(None)
    mx.random.seed(3)
    assert answer(None) == first


def test_task_2_residual_of_nearly_equal_distributions_is_valid():
    p = mx.array([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]])

    class AlwaysRejects:
        def uniform(self, count):
            return mx.ones(count)

        def draw(self, logits):
            return make_sampler(1.0, seed=1)(logits)

    accepted, token = verify_by_rejection(p, p[:1], mx.array([1]), AlwaysRejects())
    assert accepted == 0
    assert token in (1, 2), "expected a token of nonzero target probability"
