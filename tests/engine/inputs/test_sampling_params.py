"""Sampling parameters: vLLM's names and defaults, and a sentence for what is out of range."""

import numpy as np
import pytest

from tiny_llm import UserError
from tiny_llm.engine.inputs.sampling_params import SamplingParams


def test_defaults_are_vllms():
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p) == (16, 1.0, 1.0)
    assert (params.top_k, params.min_p, params.repetition_penalty) == (0, 0.0, 1.0)
    assert (params.n, params.seed, params.logprobs) == (1, None, None)
    assert not params.has_penalties
    assert not params.is_greedy


def test_one_stop_or_several():
    assert SamplingParams(stop="a").stop_strings == ("a",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams().stop_strings == ()
    assert SamplingParams(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)


def test_numbers_of_numpy_are_numbers():
    params = SamplingParams(stop_token_ids=np.array([0, 7]), seed=np.int64(2**62))
    assert params == SamplingParams(stop_token_ids=(0, np.int64(7)), seed=2**62)
    assert {type(number) for number in (*params.stop_token_ids, params.seed)} == {int}


def test_boundaries_are_allowed():
    SamplingParams(temperature=0, top_p=1, top_k=-1, min_p=1, presence_penalty=-2)
    SamplingParams(max_tokens=None, logprobs=0, seed=2**64 - 1, logit_bias={3: -100})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; it must be a whole number ≥ 1."),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number ≥ 1."),
        ({"temperature": -1}, "temperature is -1; it must be a number ≥ 0 (0 is greedy)."),
        ({"temperature": float("nan")}, "temperature is nan; it must be"),
        ({"temperature": float("inf")}, "temperature is inf; it must be"),
        ({"temperature": "hot"}, "temperature is 'hot'; it must be"),
        ({"top_p": 0}, "top_p is 0; it must be in (0, 1] (1 keeps every token)."),
        ({"top_p": 1.1}, "top_p is 1.1;"),
        ({"top_k": -2}, "top_k is -2; it must be a whole number ≥ -1 (0 and -1 keep every token)."),
        ({"min_p": 2}, "min_p is 2; it must be in [0, 1]"),
        ({"seed": -1}, "seed is -1;"),
        ({"seed": 2**64}, "it must be below 2**64."),
        ({"stop": ""}, "stop is ''; it must be a text or several, none of them empty."),
        ({"stop": [3]}, "stop is [3];"),
        ({"stop": 5}, "stop is 5; it must be a text or several"),
        ({"stop": 0}, "stop is 0; it must be a text or several"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids is ['a']; it must hold token ids"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; it must hold token ids, numbers ≥ 0."),
        ({"stop_token_ids": 0}, "stop_token_ids is 0; it must hold token ids"),
        ({"stop_token_ids": "12"}, "stop_token_ids is '12'; it must hold token ids"),
        ({"stop_token_ids": b"ab"}, "stop_token_ids is b'ab'; it must hold token ids"),
        ({"stop_token_ids": np.array(5)}, "stop_token_ids is array(5); it must hold"),
        ({"stop_token_ids": np.array([0.5])}, "stop_token_ids is array([0.5]); it must hold"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0; it must be a number > 0"),
        ({"presence_penalty": 3}, "presence_penalty is 3; it must be in [-2, 2]"),
        ({"frequency_penalty": -3}, "frequency_penalty is -3;"),
        ({"logit_bias": {3: 101}}, "logit_bias[3] is 101; it must be in [-100, 100]."),
        ({"logit_bias": {"a": 1}}, "logit_bias has the token 'a'; ids are whole numbers ≥ 0."),
        ({"logit_bias": [1]}, "logit_bias is [1]; it must map token ids"),
        ({"logprobs": -1}, "logprobs is -1;"),
        ({"n": 0}, "n is 0;"),
        ({"n": 2, "temperature": 0}, "greedy answers would all be the same"),
    ],
)
def test_out_of_range_is_a_sentence(fields, message):
    with pytest.raises(UserError) as raised:
        SamplingParams(**fields)
    assert message in str(raised.value)
    assert str(raised.value).endswith(".")
