"""Sampler: parameters match their definitions; rows are batch-invariant."""

import mlx.core as mx
import numpy as np
import pytest

from tests.support import as_numpy
from tiny_llm import SamplingParams, make_sampler
from tiny_llm.engine.execution.sampler import (
    SamplingRow,
    TokenCounts,
    _splitmix64,
    completion_seed,
    gumbel_noise,
    process_logits,
    sample_tokens,
    to_ints,
    top_logprobs,
)
from tiny_llm.engine.scheduling.request import EngineRequest
from tiny_llm.sampling_ops import log_softmax

V = 50
PROMPT, OUTPUT = [3, 4, 4], [4, 7, 7, 7]


def request(params: SamplingParams, seed: int, prompt=PROMPT) -> EngineRequest:
    return EngineRequest("", prompt, params, seed=seed, token_counts=TokenCounts(prompt, V))


def row(seed: int = 1, position: int = 0, draft_tokens=(), **params) -> SamplingRow:
    """Sampling row of a request with prompt `PROMPT` and output `OUTPUT`."""
    engine_request = request(SamplingParams(**params), seed)
    engine_request.token_ids += OUTPUT
    return SamplingRow(engine_request, position, tuple(draft_tokens))


PARAMS = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.5},
    {"temperature": 0, "logit_bias": {5: 3.0, 9: -4.0}},
    {"temperature": 1},
    {"temperature": 0.5, "top_k": 5},
    {"temperature": 2, "top_p": 0.7},
    {"temperature": 2, "top_p": 0.7, "frequency_penalty": 0.3},
    {"temperature": 1.5, "min_p": 0.1, "top_k": 9, "top_p": 0.8, "presence_penalty": -1},
    {"temperature": 1, "repetition_penalty": 0.5, "logit_bias": {7: 2.5}},
]


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
def test_row_does_not_depend_on_other_rows(dtype):
    logits = (mx.random.normal((len(PARAMS), V)) * 3).astype(dtype)
    rows = [row(seed, position=seed % 3, **params) for seed, params in enumerate(PARAMS)]
    reference = [to_ints(sample_tokens(logits[i : i + 1], [r]))[0] for i, r in enumerate(rows)]
    processed = [process_logits(logits[i : i + 1], [r]) for i, r in enumerate(rows)]
    rng = np.random.default_rng(3)
    for _ in range(20):
        picked = rng.permutation(len(rows))[: rng.integers(1, len(rows) + 1)].tolist()
        batch, batch_logits = [rows[i] for i in picked], logits[mx.array(picked)]
        assert to_ints(sample_tokens(batch_logits, batch)) == [reference[i] for i in picked]
        together = process_logits(batch_logits, batch)
        for actual, i in zip(together, picked, strict=True):
            assert mx.array_equal(actual, processed[i][0])


def test_process_logits_does_not_modify_its_argument():
    logits = mx.random.normal((len(PARAMS), V))
    before = as_numpy(logits).copy()
    sample_tokens(logits, [row(**params) for params in PARAMS])
    np.testing.assert_array_equal(as_numpy(logits), before)


def test_penalties():
    logits = mx.random.normal((1, V)) * 3
    penalized = row(
        temperature=0,
        draft_tokens=[9, 7],
        repetition_penalty=1.7,
        presence_penalty=0.6,
        frequency_penalty=0.4,
        logit_bias={11: 2.0},
    )
    expected = as_numpy(logits)[0].astype(np.float64)
    expected[11] += 2
    # The repetition penalty applies to the tokens in prompt, output and draft.
    for token in {3, 4, 7, 9}:
        expected[token] *= 1.7 if expected[token] < 0 else 1 / 1.7
    # Presence and frequency penalties depend on a token's count in the output and the draft.
    for token, count in {4: 1, 7: 4, 9: 1}.items():
        expected[token] -= 0.4 * count + 0.6
    np.testing.assert_allclose(
        as_numpy(process_logits(logits, [penalized]))[0], expected, rtol=1e-5
    )


@pytest.mark.parametrize(
    "filters", [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 7, "top_p": 0.9}], ids=str
)
def test_filters_match_make_sampler(filters):
    logits = mx.random.normal((1, V)) * 3
    actual = mx.softmax(process_logits(logits, [row(temperature=1, **filters)]), axis=-1)
    expected = make_sampler(1, **filters).probabilities(log_softmax(logits))
    np.testing.assert_allclose(as_numpy(actual), as_numpy(expected), rtol=1e-5, atol=1e-7)


def test_temperature_is_applied_before_filters():
    logits = mx.log(mx.array([[0.5, 0.3, 0.15, 0.05]]))

    def kept(temperature: float) -> list[int]:
        params = SamplingParams(temperature=temperature, top_p=0.75)
        rows = [SamplingRow(request(params, 0, [0]), 0)]
        return np.flatnonzero(np.isfinite(as_numpy(process_logits(logits, rows))[0])).tolist()

    assert kept(1.0) == [0, 1]
    assert kept(9.0) == [0, 1, 2]  # nearly uniform: a mass of 0.75 takes three tokens
    assert kept(0.2) == [0]


def test_noise_depends_on_seed_and_position():
    rows = [row(seed, position) for seed in (1, 2) for position in (0, 1, 2)]
    noise = as_numpy(gumbel_noise(rows, V))
    assert len({values.tobytes() for values in noise}) == len(rows)
    np.testing.assert_array_equal(as_numpy(gumbel_noise([rows[4]], V))[0], noise[4])
    assert abs(np.corrcoef(noise)[np.triu_indices(len(rows), 1)]).max() < 0.6
    assert len({completion_seed(seed, index) for seed in range(30) for index in range(30)}) == 900
    assert _splitmix64(0) == 0xE220A8397B1DCDAF  # the reference implementation's first output


def test_draft_with_a_narrower_vocabulary_gets_the_same_noise():
    """The draft model's vocabulary may have less padding than the target's."""
    logits = mx.random.normal((1, V))
    rows = [row(temperature=1)]
    narrow = to_ints(sample_tokens(logits[:, : V - 7], rows, noise_width=V))
    padded = mx.concatenate([logits[:, : V - 7], mx.full((1, 7), -mx.inf)], axis=1)
    assert narrow == to_ints(sample_tokens(padded, rows))


@pytest.mark.parametrize("vocab_size", [50, 512, 513, 32_000, 151_936])
def test_error_of_logprobs_does_not_grow_with_the_vocabulary(either_device, vocab_size):
    logits = mx.random.normal((2, vocab_size)) * 4
    exact = as_numpy(logits).astype(np.float64)
    exact -= np.log(np.exp(exact).sum(axis=-1, keepdims=True))
    actual = as_numpy(log_softmax(logits))
    # Four roundings: two levels of sums, the subtraction of the maximum, and the result.
    bound = 4 * 2.0**-24 * np.abs(exact).max()
    assert np.abs(actual - exact).max() <= bound
    [top, _] = top_logprobs(logits, [3, 0], [0, 0])
    assert all(abs(logprob - exact[0, token]) <= bound for token, logprob in top.items())
    assert np.exp(actual.astype(np.float64)).sum(axis=-1) == pytest.approx(1, abs=bound)


def test_logprobs_of_masked_tokens_are_minus_infinity():
    # some blocks of the sum are all −inf
    logits = mx.where(mx.arange(2000) < 1400, -mx.inf, 0.0)[None]
    logprobs = as_numpy(log_softmax(logits))[0]
    assert (logprobs[:1400] == -np.inf).all()
    assert logprobs[1400:] == pytest.approx(-np.log(600), abs=1e-6)


def test_logprobs_ignore_sampling_params():
    logits = mx.random.normal((3, V)) * 2
    expected = as_numpy(log_softmax(logits))
    actual = top_logprobs(
        logits, [0, 2, 4], [9, int(expected[1].argmax()), int(expected[2].argmin())]
    )
    assert [len(top) for top in actual] == [1, 2, 5]
    for number, top in enumerate(actual):
        best = np.argsort(-expected[number])[: (0, 2, 4)[number]].tolist()
        assert list(top)[: len(best)] == best
        for token, logprob in top.items():
            assert logprob == expected[number][token]
