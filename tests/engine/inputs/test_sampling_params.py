"""`SamplingParams`: vLLM's names and defaults; rejected values."""

import numpy as np
import pytest

from tiny_llm import UserError
from tiny_llm.engine.inputs.sampling_params import SamplingParams


def test_defaults_match_vllm():
    params = SamplingParams()
    assert (params.max_tokens, params.temperature, params.top_p) == (16, 1.0, 1.0)
    assert (params.top_k, params.min_p, params.repetition_penalty) == (0, 0.0, 1.0)
    assert (params.n, params.seed, params.logprobs) == (1, None, None)
    assert not params.has_penalties
    assert not params.is_greedy


def test_stop_is_a_string_or_a_list():
    assert SamplingParams(stop="a").stop_strings == ("a",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    assert SamplingParams().stop_strings == ()
    assert SamplingParams(stop_token_ids=[3, 4]).stop_token_ids == (3, 4)


def test_numpy_scalars_are_accepted():
    params = SamplingParams(stop_token_ids=np.array([0, 7]), seed=np.int64(2**62))
    assert SamplingParams(seed=-1).seed is SamplingParams(seed=np.int64(-1)).seed is None
    assert params == SamplingParams(stop_token_ids=(0, np.int64(7)), seed=2**62)
    assert {type(number) for number in (*params.stop_token_ids, params.seed)} == {int}


def test_boundary_values_are_accepted():
    SamplingParams(temperature=0, top_p=1, top_k=-1, min_p=1, presence_penalty=-2)
    SamplingParams(max_tokens=None, logprobs=0, seed=2**64 - 1, logit_bias={3: -100})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"max_tokens": 1.5}, "max_tokens must be an integer of at least 1, got 1.5."),
        ({"temperature": -1}, "temperature must be a number ≥ 0 (0 is greedy), got -1."),
        ({"temperature": float("nan")}, "temperature must be a number ≥ 0 (0 is greedy), got nan."),
        ({"temperature": float("inf")}, "temperature must be a number ≥ 0 (0 is greedy), got inf."),
        ({"temperature": "hot"}, "temperature must be a number ≥ 0 (0 is greedy), got 'hot'."),
        ({"top_p": 0}, "top_p must be in (0, 1] (1 keeps every token), got 0."),
        ({"top_p": 1.1}, "top_p must be in (0, 1] (1 keeps every token), got 1.1."),
        ({"top_k": -2}, "top_k must be at least -1 (0 and -1 keep every token), got -2."),
        ({"min_p": 2}, "min_p must be in [0, 1] (0 keeps every token), got 2."),
        ({"seed": -2}, "seed must be at least 0, got -2"),
        ({"seed": 2**64}, "seed must be below 2**64, got 18446744073709551616."),
        ({"stop": ""}, "stop must be a non-empty string or a list of them, got ''."),
        ({"stop": [3]}, "stop must be a non-empty string or a list of them, got [3]."),
        ({"stop": 5}, "stop must be a non-empty string or a list of them, got 5."),
        ({"stop": 0}, "stop must be a non-empty string or a list of them, got 0."),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be a list of token ids ≥ 0, got ['a']."),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids ≥ 0, got 5."),
        ({"stop_token_ids": 0}, "stop_token_ids must be a list of token ids ≥ 0, got 0."),
        ({"stop_token_ids": "12"}, "stop_token_ids must be a list of token ids ≥ 0, got '12'."),
        ({"stop_token_ids": b"ab"}, "stop_token_ids must be a list of token ids ≥ 0, got b'ab'."),
        ({"stop_token_ids": np.array(5)}, "must be a list of token ids ≥ 0, got array(5)."),
        ({"stop_token_ids": np.array([0.5])}, "must be a list of token ids ≥ 0, got array([0.5])."),
        (
            {"repetition_penalty": 0},
            "repetition_penalty must be a number > 0 (1 disables it), got 0.",
        ),
        ({"presence_penalty": 3}, "presence_penalty must be in [-2, 2] (0 disables it), got 3."),
        (
            {"frequency_penalty": -3},
            "frequency_penalty must be in [-2, 2] (0 disables it), got -3.",
        ),
        ({"logit_bias": {3: 101}}, "logit_bias[3] must be in [-100, 100], got 101."),
        ({"logit_bias": {"a": 1}}, "logit_bias must have token ids ≥ 0 as keys, got 'a'."),
        ({"logit_bias": [1]}, "logit_bias must map token ids to numbers in [-100, 100], got [1]."),
        ({"logprobs": -1}, "logprobs must be at least 0, got -1"),
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"n": 10_000}, "n must be at most 4096, got 10000; repeat the prompt for more"),
        ({"n": 2.0}, "n must be an integer of at least 1, got 2.0."),
        ({"max_tokens": "5"}, "max_tokens must be an integer of at least 1, got '5'."),
        ({"temperature": None}, "temperature must be a number ≥ 0 (0 is greedy), got None."),
        ({"temperature": True}, "temperature must be a number ≥ 0 (0 is greedy), got True."),
        ({"temperature": 10**400}, "temperature must be a number ≥ 0 (0 is greedy), got 1000000"),
        ({"top_k": 1.0}, "top_k must be an integer of at least -1 (0 and -1 keep every token)"),
        ({"seed": 1.5}, "seed must be an integer of at least 0, got 1.5."),
        ({"stop": ["a"] * 200_000}, "stop must have at most 100,000 elements; remove some."),
        ({"stop_token_ids": range(10**12)}, "stop_token_ids must have at most 100,000 elements"),
        ({"stop_token_ids": [True]}, "stop_token_ids must be a list of token ids ≥ 0, got [True]."),
        ({"logit_bias": {True: 1}}, "logit_bias must have token ids ≥ 0 as keys, got True."),
        ({"logit_bias": {1: 10**400}}, "logit_bias[1] must be in [-100, 100], got 1000000"),
        ({"prompt_logprobs": 1.5}, "prompt_logprobs must be an integer of at least 0, got 1.5."),
        ({"ignore_eos": "yes"}, "ignore_eos must be True or False, got 'yes'."),
        ({"structured_outputs": {"json": "{}"}}, "must be a StructuredOutputs, got {'json'"),
        ({"n": 2, "temperature": 0}, "n must be 1 at temperature 0.0, got 2: greedy completions"),
    ],
)
def test_invalid_values_are_rejected(fields, message):
    with pytest.raises(UserError) as raised:
        SamplingParams(**fields)
    assert message in str(raised.value)
    assert str(raised.value).endswith(".")
