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
    assert params.stop_strings == ()


def test_numpy_scalars_are_accepted():
    params = SamplingParams(stop_token_ids=np.array([0, 7]), seed=np.int64(2**62))
    assert SamplingParams(seed=-1).seed is SamplingParams(seed=np.int64(-1)).seed is None
    assert params == SamplingParams(stop_token_ids=(0, np.int64(7)), seed=2**62)
    assert {type(number) for number in (*params.stop_token_ids, params.seed)} == {int}


def test_boundary_values_and_single_stop_strings_are_accepted():
    assert SamplingParams(stop="a").stop_strings == ("a",)
    assert SamplingParams(stop=["a", "b"]).stop_strings == ("a", "b")
    SamplingParams(temperature=0, top_p=1, top_k=-1, min_p=1, presence_penalty=-2)
    SamplingParams(max_tokens=None, logprobs=0, seed=2**64 - 1, logit_bias={3: -100})


NUMBER, MANY = "a number ≥ 0 (0 is greedy)", 10**400
# Field, its rule, values that break it.
BROKEN_RULES = [
    ("max_tokens", "at least 1", [0]),
    ("max_tokens", "an integer of at least 1", [1.5, "5"]),
    ("temperature", NUMBER, [-1, float("nan"), float("inf"), "hot", None, True]),
    ("top_p", "in (0, 1] (1 keeps every token)", [0, 1.1]),
    ("top_k", "at least -1 (0 and -1 keep every token)", [-2]),
    ("top_k", "an integer of at least -1 (0 and -1 keep every token)", [1.0]),
    ("min_p", "in [0, 1] (0 keeps every token)", [2]),
    ("seed", "at least 0", [-2]),
    ("seed", "an integer of at least 0", [1.5]),
    ("seed", "below 2**64", [2**64]),
    ("stop", "a non-empty string or a list of them", ["", [3], 5, 0]),
    ("stop_token_ids", "a list of token ids ≥ 0", [["a"], 5, 0, "12", b"ab", [True]]),
    ("stop_token_ids", "a list of token ids ≥ 0", [np.array(5), np.array([0.5])]),
    ("repetition_penalty", "a number > 0 (1 disables it)", [0]),
    ("presence_penalty", "in [-2, 2] (0 disables it)", [3]),
    ("frequency_penalty", "in [-2, 2] (0 disables it)", [-3]),
    ("logit_bias", "map token ids to numbers in [-100, 100]", [[1]]),
    ("logprobs", "at least 0", [-1]),
    ("prompt_logprobs", "an integer of at least 0", [1.5]),
    ("n", "at least 1", [0]),
    ("thinking_token_budget", "at least 0", [-1]),
    ("n", "an integer of at least 1", [2.0]),
    ("ignore_eos", "True or False", ["yes"]),
]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            (
                {name: value},
                f"{name} must {'' if rule[:3] == 'map' else 'be '}{rule}, got {value!r}",
            )
            for name, rule, values in BROKEN_RULES
            for value in values
        ),
        ({"temperature": MANY}, f"temperature must be {NUMBER}, got 1000000"),
        ({"logit_bias": {3: 101}}, "logit_bias[3] must be in [-100, 100], got 101."),
        ({"logit_bias": {1: MANY}}, "logit_bias[1] must be in [-100, 100], got 1000000"),
        ({"logit_bias": {"a": 1}}, "logit_bias must have token ids ≥ 0 as keys, got 'a'."),
        ({"logit_bias": {True: 1}}, "logit_bias must have token ids ≥ 0 as keys, got True."),
        ({"max_tokens": 4, "min_tokens": 5}, "most max_tokens, got min_tokens=5 and max_tokens=4"),
        ({"n": 10_000}, "n must be at most 4096, got 10000; repeat the prompt for more"),
        ({"stop": ["a"] * 200_000}, "stop must have at most 100,000 elements; remove some."),
        ({"stop_token_ids": range(10**12)}, "stop_token_ids must have at most 100,000 elements"),
        ({"structured_outputs": {"json": "{}"}}, "must be a StructuredOutputs, got {'json'"),
        ({"n": 2, "temperature": 0}, "n must be 1 at temperature 0.0, got 2: greedy completions"),
    ],
)
def test_invalid_values_are_rejected(fields, message):
    with pytest.raises(UserError) as raised:
        SamplingParams(**fields)
    assert message in str(raised.value)
    assert str(raised.value).endswith(".")
